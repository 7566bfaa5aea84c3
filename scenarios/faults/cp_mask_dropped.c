/* cp-mask-dropped: the kernel is not given the causal mask. */
#include "scenarios/fault.h"

const struct fault fault_cp_mask_dropped = {
    .name = "cp-mask-dropped",
    .component = "cp.mask",
    .injected = "the kernel is not given the causal mask",
    .visible = "queries see keys behind them",
    .checks = "oracle,influence,flag-sensitivity",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_mask_dropped.json",
    .signature = "leaks",
    .parts_count = 1,
    .parts = {{"cp.mask_passed", "never", "", 0, AT_EVERYWHERE}},
};
