/* dp-reduce-wrong-buffer: the last micro-batch's narrow gradient is reduced instead of the wide accumulator. */
#include "scenarios/fault.h"

const struct fault fault_dp_reduce_wrong_buffer = {
    .name = "dp-reduce-wrong-buffer",
    .component = "precision",
    .injected = "the last micro-batch's narrow gradient is reduced instead of the wide accumulator",
    .visible = "the accumulation is lost",
    .checks = "contribution",
    .source = "DeepSpeed #5170",
    .scenario = "fault_dp_reduce_wrong_buffer.json",
    .signature = "missing-microbatch",
    .parts_count = 1,
    .parts = {{"dp.reduce_source", "never", "", 0, AT_EVERYWHERE}},
};
