/* ep-seq-index-b1: a token's number is taken as [position, sequence], which is right for one sequence only. */
#include "scenarios/fault.h"

const struct fault fault_ep_seq_index_b1 = {
    .name = "ep-seq-index-b1",
    .component = "moe.dispatch",
    .injected = "a token's number is taken as [position, sequence], which is right for one sequence only",
    .visible = "experts read tokens of other samples; right for micro-batches of one sequence",
    .checks = "oracle,row-identity",
    .source = "torchtitan #3604",
    .scenario = "fault_ep_seq_index_b1.json",
    .signature = "other-token",
    .parts_count = 1,
    .parts = {{"moe.token_index", "never", "", 0, AT_EVERYWHERE}},
};
