/* cp-merge-overflow: the larger log-sum-exp is not taken off before exp. */
#include "scenarios/fault.h"

const struct fault fault_cp_merge_overflow = {
    .name = "cp-merge-overflow",
    .component = "cp.merge",
    .injected = "the larger log-sum-exp is not taken off before exp",
    .visible = "not finite with large logits, right with small ones",
    .checks = "oracle,poison",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_merge_overflow.json",
    .signature = "overflow",
    .parts_count = 1,
    .parts = {{"cp.merge_stable", "never", "", 0, AT_EVERYWHERE}},
};
