/* cp-causal-skip: blocks of later ranks are left out, as a causal mask would have it, though the mask is not causal. */
#include "scenarios/fault.h"

const struct fault fault_cp_causal_skip = {
    .name = "cp-causal-skip",
    .component = "cp.skip",
    .injected = "blocks of later ranks are left out, as a causal mask would have it, though the mask is not causal",
    .visible = "errors grow with P - 1 - rank; the last rank is right, so one rank's test may pass",
    .checks = "oracle,consumption,softmax-mass",
    .source = "a public account of a library, version 0.6.4",
    .scenario = "fault_cp_causal_skip.json",
    .signature = "causal-skip",
    .parts_count = 1,
    .parts = {{"cp.skip_block", "ignore-guard", "", 0, AT_EVERYWHERE}},
};
