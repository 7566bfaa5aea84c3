/* dp-grad-buffer-not-zeroed: the gradient's memory is used for gathered parameters in between and not zeroed after. */
#include "scenarios/fault.h"

const struct fault fault_dp_grad_buffer_not_zeroed = {
    .name = "dp-grad-buffer-not-zeroed",
    .component = "buffers",
    .injected = "the gradient's memory is used for gathered parameters in between and not zeroed after",
    .visible = "parameters are added to gradients",
    .checks = "poison",
    .source = "Megatron-LM #4609",
    .scenario = "fault_dp_grad_buffer_not_zeroed.json",
    .signature = "not-arrived",
    .parts_count = 1,
    .parts = {{"dp.grad_buffer", "not-zeroed", "", 0, AT_EVERYWHERE}},
};
