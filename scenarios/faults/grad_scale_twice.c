/* grad-scale-twice: what every gradient is multiplied by in the end is applied by the gradient hook and again by its wrapper. */
#include "scenarios/fault.h"

const struct fault fault_grad_scale_twice = {
    .name = "grad-scale-twice",
    .component = "pp.grad_scale",
    .injected = "what every gradient is multiplied by in the end is applied by the gradient hook and again by its wrapper",
    .visible = "gradients are 1/M, or 1/N, of what is due; the printed loss is right",
    .checks = "scale-ledger,token-weight",
    .source = "hyper-parallel core/hsdp/hsdp_grad_hook.py (one data rank)",
    .scenario = "fault_grad_scale_twice.json",
    .signature = "",
    .parts_count = 1,
    .parts = {{"pp.grad_scale", "twice", "", 0, AT_EVERYWHERE}},
};
