/* ep-router-grad-no-ep-sum: the gradient of the experts' weights is not summed over the ranks that share the experts. */
#include "scenarios/fault.h"

const struct fault fault_ep_router_grad_no_ep_sum = {
    .name = "ep-router-grad-no-ep-sum",
    .component = "moe.router",
    .injected = "the gradient of the experts' weights is not summed over the ranks that share the experts",
    .visible = "the router learns from a rank's own experts alone, and its copies drift apart",
    .checks = "oracle,conservation,communication-count",
    .source = "the first reports of hpsim's forerunner",
    .scenario = "fault_ep_router_grad_no_ep_sum.json",
    .signature = "zeros",
    .parts_count = 1,
    .parts = {{"ep.gate_grad", "skip", "", 0, AT_EVERYWHERE}},
};
