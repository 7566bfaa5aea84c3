/* cp-keep-last: each block's result is written over the one before. */
#include "scenarios/fault.h"

const struct fault fault_cp_keep_last = {
    .name = "cp-keep-last",
    .component = "cp.merge",
    .injected = "each block's result is written over the one before",
    .visible = "only the block that came last is in the output",
    .checks = "oracle,consumption,softmax-mass",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_keep_last.json",
    .signature = "last-block-only",
    .parts_count = 1,
    .parts = {{"cp.merge", "keep-last", "", 0, AT_EVERYWHERE}},
};
