/* pp-stale-grad-leak: the accumulator is not emptied after a step's last reduction. */
#include "scenarios/fault.h"

const struct fault fault_pp_stale_grad_leak = {
    .name = "pp-stale-grad-leak",
    .component = "pp.grad",
    .injected = "the accumulator is not emptied after a step's last reduction",
    .visible = "the last micro-batches' gradients enter the next step as well",
    .checks = "contribution",
    .source = "DeepSpeed PR #7985",
    .scenario = "fault_pp_stale_grad_leak.json",
    .signature = "earlier-step",
    .parts_count = 1,
    .parts = {{"pp.grad.clear", "never", "", 0, AT_LAST_MICROBATCH}},
};
