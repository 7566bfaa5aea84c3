/* pp-grad-cleared: gradients are set to none between micro-batches. */
#include "scenarios/fault.h"

const struct fault fault_pp_grad_cleared = {
    .name = "pp-grad-cleared",
    .component = "pp.grad",
    .injected = "gradients are set to none between micro-batches",
    .visible = "only the last micro-batch trains; the loss is right",
    .checks = "contribution",
    .source = "NeMo Automodel PR #3530",
    .scenario = "fault_pp_grad_cleared.json",
    .signature = "missing-microbatch",
    .parts_count = 1,
    .parts = {{"pp.grad.clear", "always", "", 0, AT_EVERYWHERE}},
};
