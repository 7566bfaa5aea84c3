/* dp-zero-grad-early: gradients are zeroed at each micro-batch. */
#include "scenarios/fault.h"

const struct fault fault_dp_zero_grad_early = {
    .name = "dp-zero-grad-early",
    .component = "dp.accumulation",
    .injected = "gradients are zeroed at each micro-batch",
    .visible = "only the last micro-batch counts",
    .checks = "contribution",
    .source = "torchtitan #3575",
    .scenario = "fault_dp_zero_grad_early.json",
    .signature = "missing-microbatch",
    .parts_count = 1,
    .parts = {{"dp.zero_grad", "always", "", 0, AT_EVERYWHERE}},
};
