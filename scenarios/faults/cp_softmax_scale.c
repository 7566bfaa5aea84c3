/* cp-softmax-scale: scores are not multiplied by 1/sqrt(head_dim). */
#include "scenarios/fault.h"

const struct fault fault_cp_softmax_scale = {
    .name = "cp-softmax-scale",
    .component = "cp.mask",
    .injected = "scores are not multiplied by 1/sqrt(head_dim)",
    .visible = "softmax too sharp",
    .checks = "oracle",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_softmax_scale.json",
    .signature = "scores-scaled",
    .parts_count = 1,
    .parts = {{"cp.softmax_scale", "omit", "", 0, AT_EVERYWHERE}},
};
