/* pp-reduce-by-index: the reduction follows the backward of the micro-batch with the last index, not the last backward. */
#include "scenarios/fault.h"

const struct fault fault_pp_reduce_by_index = {
    .name = "pp-reduce-by-index",
    .component = "fsdp.sync_now",
    .injected = "the reduction follows the backward of the micro-batch with the last index, not the last backward",
    .visible = "where a schedule goes backward from the last micro-batch to the first, only that one is ever reduced",
    .checks = "contribution",
    .source = "hyper-parallel 019ed966 (add_fsdp_reduce_grad)",
    .scenario = "fault_pp_reduce_by_index.json",
    .signature = "",
    .parts_count = 2,
    .parts = {{"fsdp.sync_now", "always", "", 0, AT_LAST_MICROBATCH}, {"fsdp.sync_now", "never", "", 0, AT_MICROBATCHES_BUT_LAST}},
};
