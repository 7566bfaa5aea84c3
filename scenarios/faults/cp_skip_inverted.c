/* cp-skip-inverted: under a causal mask the past is left out and the future computed. */
#include "scenarios/fault.h"

const struct fault fault_cp_skip_inverted = {
    .name = "cp-skip-inverted",
    .component = "cp.skip",
    .injected = "under a causal mask the past is left out and the future computed",
    .visible = "every rank but those at the ends is wrong, and the future leaks",
    .checks = "oracle,consumption,influence",
    .source = "a published correction of the same rule",
    .scenario = "fault_cp_skip_inverted.json",
    .signature = "past-skipped",
    .parts_count = 1,
    .parts = {{"cp.skip_block", "negate", "", 0, AT_EVERYWHERE}},
};
