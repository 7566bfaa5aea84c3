/* tp-row-bias-times-tp: the bias of a row-parallel matrix is added on every rank before the sum. */
#include "scenarios/fault.h"

const struct fault fault_tp_row_bias_times_tp = {
    .name = "tp-row-bias-times-tp",
    .component = "tp",
    .injected = "the bias of a row-parallel matrix is added on every rank before the sum",
    .visible = "outputs hold the bias as often as there are ranks",
    .checks = "oracle,placement",
    .source = "Paddle #35186; TGI #1036; MinivLLM #80; slapo #10; torchtitan #4245",
    .scenario = "fault_tp_row_bias_times_tp.json",
    .signature = "bias-on-every-rank",
    .parts_count = 1,
    .parts = {{"tp.bias", "never", "", 0, AT_EVERYWHERE}},
};
