/* ep-gate-grad-detached: the weights of the chosen experts are gathered without a way back for their gradient. */
#include "scenarios/fault.h"

const struct fault fault_ep_gate_grad_detached = {
    .name = "ep-gate-grad-detached",
    .component = "moe.router",
    .injected = "the weights of the chosen experts are gathered without a way back for their gradient",
    .visible = "the router learns from auxiliary losses alone; its gradient collapses",
    .checks = "oracle,routing",
    .source = "Megatron-LM b6ce193888; Automodel #2995",
    .scenario = "fault_ep_gate_grad_detached.json",
    .signature = "zeros",
    .parts_count = 1,
    .parts = {{"moe.gate_gradient", "zero", "", 0, AT_EVERYWHERE}},
};
