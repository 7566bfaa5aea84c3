/* cp-window-dropped: the kernel is not given the window. */
#include "scenarios/fault.h"

const struct fault fault_cp_window_dropped = {
    .name = "cp-window-dropped",
    .component = "cp.mask",
    .injected = "the kernel is not given the window",
    .visible = "queries see keys outside of it",
    .checks = "oracle,influence",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_window_dropped.json",
    .signature = "leaks",
    .parts_count = 1,
    .parts = {{"cp.window_passed", "never", "", 0, AT_EVERYWHERE}},
};
