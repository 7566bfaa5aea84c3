/* cp-uninitialised-lse: what blocks are merged into is not begun empty. */
#include "scenarios/fault.h"

const struct fault fault_cp_uninitialised_lse = {
    .name = "cp-uninitialised-lse",
    .component = "cp.buffer",
    .injected = "what blocks are merged into is not begun empty",
    .visible = "a block of zeros with a log-sum-exp of its own is merged with them",
    .checks = "oracle,softmax-mass",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_uninitialised_lse.json",
    .signature = "begun-full",
    .parts_count = 1,
    .parts = {{"cp.out_init", "not-zeroed", "", 0, AT_EVERYWHERE}},
};
