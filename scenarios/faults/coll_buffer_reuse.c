/* coll-buffer-reuse: a buffer that a reduction sends from is cleared for the next use before the reduction has taken
 * it. */
#include "scenarios/fault.h"

const struct fault fault_coll_buffer_reuse = {
    .name = "coll-buffer-reuse",
    .component = "async",
    .injected = "a buffer that a reduction sends from is cleared for the next use before the reduction has taken it",
    .visible = "zeros in the sum",
    .checks = "race",
    .source = "DeepSpeed #7965, #5606, #7898, #7805, #7371, #6993, PyTorch #188655",
    .scenario = "fault_coll_buffer_reuse.json",
    .signature = "overwritten",
    .parts_count = 1,
    .parts = {{"fsdp.reduce_grad", "reuse-buffer", "", 0, AT_DATA_RANK_ONE}},
};
