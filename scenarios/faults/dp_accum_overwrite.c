/* dp-accum-overwrite: a micro-batch's gradient is written over the accumulator instead of added. */
#include "scenarios/fault.h"

const struct fault fault_dp_accum_overwrite = {
    .name = "dp-accum-overwrite",
    .component = "dp.accumulation",
    .injected = "a micro-batch's gradient is written over the accumulator instead of added",
    .visible = "the effective batch is one micro-batch",
    .checks = "contribution",
    .source = "Megatron-LM #6357; DeepSpeed #7981, #6550; open-instruct #1498",
    .scenario = "fault_dp_accum_overwrite.json",
    .signature = "missing-microbatch",
    .parts_count = 1,
    .parts = {{"dp.grad.add", "never", "", 0, AT_EVERYWHERE}},
};
