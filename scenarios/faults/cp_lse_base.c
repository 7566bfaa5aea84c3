/* cp-lse-base: a kernel's log-sum-exp in base 2 is merged as one in base e. */
#include "scenarios/fault.h"

const struct fault fault_cp_lse_base = {
    .name = "cp-lse-base",
    .component = "cp.merge",
    .injected = "a kernel's log-sum-exp in base 2 is merged as one in base e",
    .visible = "weights of blocks are those due to the power 1/ln 2; small with long sequences",
    .checks = "oracle,softmax-mass",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_lse_base.json",
    .signature = "lse-base",
    .parts_count = 1,
    .parts = {{"cp.lse", "wrong-base", "", 0, AT_EVERYWHERE}},
};
