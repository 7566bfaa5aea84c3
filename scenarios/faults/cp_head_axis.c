/* cp-head-axis: attention goes over the heads of one position, not over positions. */
#include "scenarios/fault.h"

const struct fault fault_cp_head_axis = {
    .name = "cp-head-axis",
    .component = "cp.position",
    .injected = "attention goes over the heads of one position, not over positions",
    .visible = "nothing depends on other positions",
    .checks = "oracle,influence,softmax-mass",
    .source = "a published reference: matmul over heads",
    .scenario = "fault_cp_head_axis.json",
    .signature = "over-heads",
    .parts_count = 1,
    .parts = {{"cp.axes", "never", "", 0, AT_EVERYWHERE}},
};
