/* dp-scale-wrong-axis: gradients are divided by the pipeline stages too, an axis that does not multiply the data. */
#include "scenarios/fault.h"

const struct fault fault_dp_scale_wrong_axis = {
    .name = "dp-scale-wrong-axis",
    .component = "dp.scaling",
    .injected = "gradients are divided by the pipeline stages too, an axis that does not multiply the data",
    .visible = "gradients are 1/P of what is due",
    .checks = "scale-ledger,token-weight",
    .source = "DeepSpeed #5555",
    .scenario = "fault_dp_scale_wrong_axis.json",
    .signature = "1/P",
    .parts_count = 1,
    .parts = {{"dp.grad.scale", "times", "1/P", 0, AT_EVERYWHERE}},
};
