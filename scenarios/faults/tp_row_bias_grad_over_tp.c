/* tp-row-bias-grad-over-tp: each rank adds its part of a row-parallel matrix' bias, whose gradient is then that part's too. */
#include "scenarios/fault.h"

const struct fault fault_tp_row_bias_grad_over_tp = {
    .name = "tp-row-bias-grad-over-tp",
    .component = "tp",
    .injected = "each rank adds its part of a row-parallel matrix' bias, whose gradient is then that part's too",
    .visible = "these biases learn as many times too slowly as there are ranks; the first loss is right",
    .checks = "oracle,placement",
    .source = "torchtitan #4332 (closed PR)",
    .scenario = "fault_tp_row_bias_grad_over_tp.json",
    .signature = "bias-over-tp",
    .parts_count = 1,
    .parts = {{"tp.bias_gradient", "never", "", 0, AT_LAYER_MIDDLE}},
};
