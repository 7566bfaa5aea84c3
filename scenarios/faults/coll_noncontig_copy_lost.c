/* coll-noncontig-copy-lost: a reduction works on a contiguous copy and leaves the caller's tensor as it was. */
#include "scenarios/fault.h"

const struct fault fault_coll_noncontig_copy_lost = {
    .name = "coll-noncontig-copy-lost",
    .component = "collectives",
    .injected = "a reduction works on a contiguous copy and leaves the caller's tensor as it was",
    .visible = "the gradient is this rank's own alone",
    .checks = "contribution",
    .source = "Megatron-LM #5337, #5338",
    .scenario = "fault_coll_noncontig_copy_lost.json",
    .signature = "missing-ranks",
    .parts_count = 1,
    .parts = {{"fsdp.reduce_grad", "copy-lost", "", 0, AT_LAYER_MIDDLE}},
};
