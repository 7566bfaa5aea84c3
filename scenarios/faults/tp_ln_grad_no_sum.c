/* tp-ln-grad-no-sum: the gradients of a layer's norms, of which each tensor-parallel rank saw a slice of the sequence, are not summed. */
#include "scenarios/fault.h"

const struct fault fault_tp_ln_grad_no_sum = {
    .name = "tp-ln-grad-no-sum",
    .component = "sp",
    .injected = "the gradients of a layer's norms, of which each tensor-parallel rank saw a slice of the sequence, are not summed",
    .visible = "copies of the norms drift apart; the loss hardly changes",
    .checks = "oracle,placement,replica-equality",
    .source = "Megatron-LM #1446 / PR#1528; ColossalAI #4926",
    .scenario = "fault_tp_ln_grad_no_sum.json",
    .signature = "missing-sum",
    .parts_count = 1,
    .parts = {{"sp.grad", "never", "", 0, AT_LAYER_MIDDLE}},
};
