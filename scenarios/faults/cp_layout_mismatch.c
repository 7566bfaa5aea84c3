/* cp-layout-mismatch: the mask is made from positions of another layout than the sequence was cut by. */
#include "scenarios/fault.h"

const struct fault fault_cp_layout_mismatch = {
    .name = "cp-layout-mismatch",
    .component = "cp.position",
    .injected = "the mask is made from positions of another layout than the sequence was cut by",
    .visible = "queries see some keys too many and some too few; without a mask nothing",
    .checks = "oracle,influence",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_layout_mismatch.json",
    .signature = "wrong-positions",
    .parts_count = 1,
    .parts = {{"cp.layout", "never", "", 0, AT_EVERYWHERE}},
};
