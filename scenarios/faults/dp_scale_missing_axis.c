/* dp-scale-missing-axis: the replicas, which share out the data too, are left out of the divisor of the gradients. */
#include "scenarios/fault.h"

const struct fault fault_dp_scale_missing_axis = {
    .name = "dp-scale-missing-axis",
    .component = "dp.scaling",
    .injected = "the replicas, which share out the data too, are left out of the divisor of the gradients",
    .visible = "gradients are D_replicate times what is due",
    .checks = "scale-ledger,token-weight",
    .source = "Megatron-LM #906, #673 (3bdcbbbe5d)",
    .scenario = "fault_dp_scale_missing_axis.json",
    .signature = "D_replicate",
    .parts_count = 1,
    .parts = {{"dp.grad.scale", "times", "D_replicate", 0, AT_EVERYWHERE}},
};
