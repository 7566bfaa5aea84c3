/* cp-extra-pass: what comes home is not unpacked as the gradient of keys, then of values. */
#include "scenarios/fault.h"

const struct fault fault_cp_extra_pass = {
    .name = "cp-extra-pass",
    .component = "cp.buffer",
    .injected = "what comes home is not unpacked as the gradient of keys, then of values",
    .visible = "dq right, dk and dv exchanged",
    .checks = "oracle,gradient-owner",
    .source = "lucidrains ring_pass",
    .scenario = "fault_cp_extra_pass.json",
    .signature = "dk-dv-exchanged",
    .parts_count = 1,
    .parts = {{"cp.grad_unpack", "never", "", 0, AT_HOP_HOME}},
};
