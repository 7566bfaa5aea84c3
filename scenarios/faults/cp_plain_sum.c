/* cp-plain-sum: blocks' results are added up without weights. */
#include "scenarios/fault.h"

const struct fault fault_cp_plain_sum = {
    .name = "cp-plain-sum",
    .component = "cp.merge",
    .injected = "blocks' results are added up without weights",
    .visible = "all keys together get P times the softmax",
    .checks = "oracle,softmax-mass",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_plain_sum.json",
    .signature = "not-normalised",
    .parts_count = 1,
    .parts = {{"cp.merge", "sum", "", 0, AT_EVERYWHERE}},
};
