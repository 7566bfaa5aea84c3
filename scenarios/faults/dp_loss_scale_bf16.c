/* dp-loss-scale-bf16: gradients are divided by a loss scale that was never applied. */
#include "scenarios/fault.h"

const struct fault fault_dp_loss_scale_bf16 = {
    .name = "dp-loss-scale-bf16",
    .component = "dp.scaling",
    .injected = "gradients are divided by a loss scale that was never applied",
    .visible = "gradients are 1/65536 of what is due; Adam hides it, clipping and eps do not",
    .checks = "scale-ledger,token-weight",
    .source = "DeepSpeed #7839",
    .scenario = "fault_dp_loss_scale_bf16.json",
    .signature = "",
    .parts_count = 1,
    .parts = {{"dp.grad.scale", "set", "1/65536", 0, AT_EVERYWHERE}},
};
