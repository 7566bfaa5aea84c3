/* dp-zero-range: the whole buffer is zeroed while a part of it holds parameters that are still needed. */
#include "scenarios/fault.h"

const struct fault fault_dp_zero_range = {
    .name = "dp-zero-range",
    .component = "buffers",
    .injected = "the whole buffer is zeroed while a part of it holds parameters that are still needed",
    .visible = "zero weights somewhere",
    .checks = "version",
    .source = "Megatron-LM c2c36f77cf",
    .scenario = "fault_dp_zero_range.json",
    .signature = "overwritten",
    .parts_count = 1,
    .parts = {{"dp.param_buffer", "wrong-range", "", 19, AT_EVERYWHERE}},
};
