/* tp-ln-grad-avg: gradients of slices are averaged over the tensor-parallel ranks where their sum is due. */
#include "scenarios/fault.h"

const struct fault fault_tp_ln_grad_avg = {
    .name = "tp-ln-grad-avg",
    .component = "sp.tp",
    .injected = "gradients of slices are averaged over the tensor-parallel ranks where their sum is due",
    .visible = "norms and biases learn as many times too slowly as there are ranks; copies agree",
    .checks = "oracle,placement",
    .source = "gpt-neox #1257/#1259; Megatron-LM 5a3b6bcf1f (!2712)",
    .scenario = "fault_tp_ln_grad_avg.json",
    .signature = "divided",
    .parts_count = 1,
    .parts = {{"sp.grad_divisor", "set", "T", 0, AT_EVERYWHERE}},
};
