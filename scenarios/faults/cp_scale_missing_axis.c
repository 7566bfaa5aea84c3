/* cp-scale-missing-axis: context-parallel ranks, which share out the data too, are left out of the divisor. */
#include "scenarios/fault.h"

const struct fault fault_cp_scale_missing_axis = {
    .name = "cp-scale-missing-axis",
    .component = "dp.scaling",
    .injected = "context-parallel ranks, which share out the data too, are left out of the divisor",
    .visible = "gradients C times what is due; Adam hides it",
    .checks = "oracle,token-weight,scale-ledger",
    .source = "Megatron-LM #906, #673 (3bdcbbbe5d)",
    .scenario = "fault_cp_scale_missing_axis.json",
    .signature = "C",
    .parts_count = 1,
    .parts = {{"dp.grad.scale", "times", "C", 0, AT_EVERYWHERE}},
};
