/* ep-expert-grad-scale: experts' gradients are divided by the ranks that they are summed over, not by all data ranks. */
#include "scenarios/fault.h"

const struct fault fault_ep_expert_grad_scale = {
    .name = "ep-expert-grad-scale",
    .component = "ep.expert_gradient",
    .injected = "experts' gradients are divided by the ranks that they are summed over, not by all data ranks",
    .visible = "experts learn E times as fast as the rest; Adam hides it",
    .checks = "scale-ledger,token-weight",
    .source = "Megatron-LM 4f8974a400 (!2564), #7160, #7165; DeepSpeed #5259, #6546",
    .scenario = "fault_ep_expert_grad_scale.json",
    .signature = "E",
    .parts_count = 1,
    .parts = {{"ep.expert_grad_divisor", "times", "1/E", 0, AT_EVERYWHERE}},
};
