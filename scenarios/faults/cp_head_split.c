/* cp-head-split: query heads go to ranks in turn, not in runs with their key/value heads. */
#include "scenarios/fault.h"

const struct fault fault_cp_head_split = {
    .name = "cp-head-split",
    .component = "cp.position",
    .injected = "query heads go to ranks in turn, not in runs with their key/value heads",
    .visible = "queries meet other key heads",
    .checks = "oracle,softmax-mass",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_head_split.json",
    .signature = "other-heads",
    .parts_count = 1,
    .parts = {{"cp.head_split", "never", "", 0, AT_EVERYWHERE}},
};
