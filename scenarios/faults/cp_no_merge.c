/* cp-no-merge: blocks that arrive are computed and never merged. */
#include "scenarios/fault.h"

const struct fault fault_cp_no_merge = {
    .name = "cp-no-merge",
    .component = "cp.merge",
    .injected = "blocks that arrive are computed and never merged",
    .visible = "each rank has its own shard alone, although everything was sent",
    .checks = "oracle,consumption,softmax-mass",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_no_merge.json",
    .signature = "first-kept",
    .parts_count = 1,
    .parts = {{"cp.merge", "keep-first", "", 0, AT_EVERYWHERE}},
};
