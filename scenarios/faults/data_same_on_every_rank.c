/* data-same-on-every-rank: every data rank draws the same samples. */
#include "scenarios/fault.h"

const struct fault fault_data_same_on_every_rank = {
    .name = "data-same-on-every-rank",
    .component = "data.sample",
    .injected = "every data rank draws the same samples",
    .visible = "the effective batch shrinks",
    .checks = "row-identity,contribution",
    .source = "Megatron-Bridge PR #5944",
    .scenario = "fault_data_same_on_every_rank.json",
    .signature = "same-samples",
    .parts_count = 1,
    .parts = {{"data.sample", "duplicate-rows", "", 0, AT_EVERYWHERE}},
};
