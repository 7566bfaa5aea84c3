/* fsdp-not-divided: the data ranks' gradients are added up where their mean is due: nothing divides by their number. */
#include "scenarios/fault.h"

const struct fault fault_fsdp_not_divided = {
    .name = "fsdp-not-divided",
    .component = "fsdp.grad_divisor",
    .injected = "the data ranks' gradients are added up where their mean is due: nothing divides by their number",
    .visible = "gradients are D times what is due; the printed loss is right",
    .checks = "scale-ledger,token-weight",
    .source = "torchtitan set_gradient_divide_factor, DeepSpeed ZeRO postscale",
    .scenario = "fault_fsdp_not_divided.json",
    .signature = "D",
    .parts_count = 1,
    .parts = {{"fsdp.grad_divisor", "omit", "", 0, AT_EVERYWHERE}},
};
