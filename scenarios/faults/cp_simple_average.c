/* cp-simple-average: blocks are averaged, as if each log-sum-exp were 0. */
#include "scenarios/fault.h"

const struct fault fault_cp_simple_average = {
    .name = "cp-simple-average",
    .component = "cp.merge",
    .injected = "blocks are averaged, as if each log-sum-exp were 0",
    .visible = "each block weighs 1/P; small where blocks weigh alike",
    .checks = "oracle,softmax-mass",
    .source = "yunchang pytorch_attn_forward returns lse = zeros",
    .scenario = "fault_cp_simple_average.json",
    .signature = "plain-average",
    .parts_count = 1,
    .parts = {{"cp.merge", "average", "", 0, AT_EVERYWHERE}},
};
