/* cp-delta-missing: the row's delta is not taken off. */
#include "scenarios/fault.h"

const struct fault fault_cp_delta_missing = {
    .name = "cp-delta-missing",
    .component = "cp.backward",
    .injected = "the row's delta is not taken off",
    .visible = "out and dv right, dq and dk wrong",
    .checks = "oracle,gradient-owner",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_delta_missing.json",
    .signature = "dq-dk",
    .parts_count = 1,
    .parts = {{"cp.delta", "never", "", 0, AT_EVERYWHERE}},
};
