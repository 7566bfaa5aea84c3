/* cp-lse-16bit: a block's log-sum-exp is rounded to bf16 before it is merged. */
#include "scenarios/fault.h"

const struct fault fault_cp_lse_16bit = {
    .name = "cp-lse-16bit",
    .component = "cp.merge",
    .injected = "a block's log-sum-exp is rounded to bf16 before it is merged",
    .visible = "1 % off, more with longer sequences",
    .checks = "oracle,softmax-mass",
    .source = "yunchang pytorch_attn_forward lse.to(q.dtype)",
    .scenario = "fault_cp_lse_16bit.json",
    .signature = "lse-rounded",
    .parts_count = 1,
    .parts = {{"cp.lse", "round", "bf16", 0, AT_EVERYWHERE}},
};
