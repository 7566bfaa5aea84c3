/* dp-reduce-bf16: gradients are cast to bf16 before the reduce-scatter, where fp32 is declared. All members call
 * alike and in the wrong format: the numbers may pass for rounding, the calls do not. */
#include "scenarios/fault.h"

const struct fault fault_dp_reduce_bf16 = {
    .name = "dp-reduce-bf16",
    .component = "precision",
    .injected = "gradients are cast to bf16 before the reduce-scatter, where fp32 is declared",
    .visible = "small terms vanish, the more the larger the group",
    .checks = "precision",
    .source = "Megatron-LM #6624, PyTorch #190626, #194628",
    .scenario = "fault_dp_reduce_bf16.json",
    .signature = "wrong-format",
    .parts_count = 1,
    .parts = {{"fsdp.reduce_grad", "wrong-format", "bf16", 0, AT_EVERYWHERE}},
};
