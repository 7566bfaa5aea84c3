/* hsdp-accumulate-after-reduce: what earlier micro-batches' reductions gave is added after the sum over replicas instead of before. */
#include "scenarios/fault.h"

const struct fault fault_hsdp_accumulate_after_reduce = {
    .name = "hsdp-accumulate-after-reduce",
    .component = "hsdp.replicate_reduce",
    .injected = "what earlier micro-batches' reductions gave is added after the sum over replicas instead of before",
    .visible = "only the last micro-batch is summed over the replicas",
    .checks = "contribution",
    .source = "pytorch PR #125484",
    .scenario = "fault_hsdp_accumulate_after_reduce.json",
    .signature = "missing-ranks",
    .parts_count = 1,
    .parts = {{"hsdp.accumulate", "never", "", 0, AT_EVERYWHERE}},
};
