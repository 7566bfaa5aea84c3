/* cp-accumulate-16bit: the running output is rounded to bf16 after each block. */
#include "scenarios/fault.h"

const struct fault fault_cp_accumulate_16bit = {
    .name = "cp-accumulate-16bit",
    .component = "cp.merge",
    .injected = "the running output is rounded to bf16 after each block",
    .visible = "errors grow with P beyond what one rounding leaves",
    .checks = "oracle",
    .source = "MindSpeed attn_out.to(origin_dtype)",
    .scenario = "fault_cp_accumulate_16bit.json",
    .signature = "rounded",
    .parts_count = 1,
    .parts = {{"cp.accumulate", "round", "bf16", 0, AT_EVERYWHERE}},
};
