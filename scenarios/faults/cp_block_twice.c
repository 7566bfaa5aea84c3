/* cp-block-twice: a block is merged twice. */
#include "scenarios/fault.h"

const struct fault fault_cp_block_twice = {
    .name = "cp-block-twice",
    .component = "cp.merge",
    .injected = "a block is merged twice",
    .visible = "its keys weigh twice beside the others'",
    .checks = "oracle,consumption,softmax-mass",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_block_twice.json",
    .signature = "doubled",
    .parts_count = 1,
    .parts = {{"cp.kv_block", "never", "", 0, AT_HOP_ONE}},
};
