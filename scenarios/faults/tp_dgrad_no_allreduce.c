/* tp-dgrad-no-allreduce: the gradient of a column-parallel matrix' input is not summed. */
#include "scenarios/fault.h"

const struct fault fault_tp_dgrad_no_allreduce = {
    .name = "tp-dgrad-no-allreduce",
    .component = "tp",
    .injected = "the gradient of a column-parallel matrix' input is not summed",
    .visible = "lower layers get a part of their gradient; the first loss is right",
    .checks = "oracle,placement",
    .source = "Megatron-LM 5fffdfc737",
    .scenario = "fault_tp_dgrad_no_allreduce.json",
    .signature = "missing-sum",
    .parts_count = 1,
    .parts = {{"tp.input_grad_reduce", "skip", "", 0, AT_LAYER_MIDDLE}},
};
