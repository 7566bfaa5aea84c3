/* cp-flags-ignored: a backend takes the causal mask and the window and gives the kernel neither. */
#include "scenarios/fault.h"

const struct fault fault_cp_flags_ignored = {
    .name = "cp-flags-ignored",
    .component = "cp.mask",
    .injected = "a backend takes the causal mask and the window and gives the kernel neither",
    .visible = "as without a mask",
    .checks = "oracle,influence",
    .source = "yunchang flash_attn3_func_forward",
    .scenario = "fault_cp_flags_ignored.json",
    .signature = "leaks-both",
    .parts_count = 2,
    .parts = {{"cp.mask_passed", "never", "", 0, AT_EVERYWHERE}, {"cp.window_passed", "never", "", 0, AT_EVERYWHERE}},
};
