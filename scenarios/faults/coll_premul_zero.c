/* coll-premul-zero: the scalar that contributions are multiplied by before a sum is read in the wrong type, as zero.
 * Zeros fit any format, so precision has nothing to say; the weights do. */
#include "scenarios/fault.h"

const struct fault fault_coll_premul_zero = {
    .name = "coll-premul-zero",
    .component = "collectives",
    .injected = "the scalar that contributions are multiplied by before a sum is read in the wrong type, as zero",
    .visible = "the reduced gradient is zero",
    .checks = "scale-ledger",
    .source = "PyTorch #190745, #190747",
    .scenario = "fault_coll_premul_zero.json",
    .signature = "0",
    .parts_count = 1,
    .parts = {{"fsdp.reduce_grad", "premultiply", "", 0, AT_LAYER_MIDDLE}},
};
