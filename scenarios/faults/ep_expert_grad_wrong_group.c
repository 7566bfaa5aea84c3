/* ep-expert-grad-wrong-group: experts' gradients are reduced over all data ranks, not over those with the same experts. */
#include "scenarios/fault.h"

const struct fault fault_ep_expert_grad_wrong_group = {
    .name = "ep-expert-grad-wrong-group",
    .component = "ep.expert_gradient",
    .injected = "experts' gradients are reduced over all data ranks, not over those with the same experts",
    .visible = "gradients of different experts are added to each other",
    .checks = "collective-match,contribution",
    .source = "Megatron-LM PR #1622, #6080 (abf04f46e3)",
    .scenario = "fault_ep_expert_grad_wrong_group.json",
    .signature = "wrong-group",
    .parts_count = 1,
    .parts = {{"ep.reduce_grad", "wrong-group", "dp", 0, AT_EVERYWHERE}},
};
