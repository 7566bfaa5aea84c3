/* rng-desync: one tensor-parallel rank has drawn once more than the others from the generator of what they all hold. */
#include "scenarios/fault.h"

const struct fault fault_rng_desync = {
    .name = "rng-desync",
    .component = "dropout",
    .injected = "one tensor-parallel rank has drawn once more than the others from the generator of what they all hold",
    .visible = "activations that all tensor-parallel ranks hold differ from the first dropout on",
    .checks = "rng",
    .source = "bigscience Megatron-DeepSpeed #276, #277 (PR#206); PaddleFleetX #1005",
    .scenario = "fault_rng_desync.json",
    .signature = "moved-on",
    .parts_count = 1,
    .parts = {{"dropout.generator", "never", "", 0, AT_RANK_ONE}},
};
