/* cp-skip-and-overwrite: blocks of later ranks are left out though the mask is not causal, and what remains is written over, not merged. */
#include "scenarios/fault.h"

const struct fault fault_cp_skip_and_overwrite = {
    .name = "cp-skip-and-overwrite",
    .component = "cp.skip",
    .injected = "blocks of later ranks are left out though the mask is not causal, and what remains is written over, not merged",
    .visible = "both mistakes of one library at once: every rank but rank 0 has one block",
    .checks = "oracle,consumption,softmax-mass",
    .source = "a public account of a library, version 0.6.4",
    .scenario = "fault_cp_skip_and_overwrite.json",
    .signature = "skipped-and-overwritten",
    .parts_count = 2,
    .parts = {{"cp.skip_block", "ignore-guard", "", 0, AT_EVERYWHERE}, {"cp.merge", "keep-last", "", 0, AT_EVERYWHERE}},
};
