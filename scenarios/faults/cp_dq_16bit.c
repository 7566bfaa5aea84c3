/* cp-dq-16bit: dq is kept in bf16 whatever the format is. */
#include "scenarios/fault.h"

const struct fault fault_cp_dq_16bit = {
    .name = "cp-dq-16bit",
    .component = "cp.backward",
    .injected = "dq is kept in bf16 whatever the format is",
    .visible = "dq alone imprecise",
    .checks = "oracle",
    .source = "zhuzilin, yunchang dq.to(torch.bfloat16)",
    .scenario = "fault_cp_dq_16bit.json",
    .signature = "rounded",
    .parts_count = 1,
    .parts = {{"cp.dq", "round", "bf16", 0, AT_EVERYWHERE}},
};
