/* tp-qkv-split-order: latent attention's matrix of keys and values is cut over tensor-parallel ranks in one piece, across the boundary of the two. */
#include "scenarios/fault.h"

const struct fault fault_tp_qkv_split_order = {
    .name = "tp-qkv-split-order",
    .component = "tp",
    .injected = "latent attention's matrix of keys and values is cut over tensor-parallel ranks in one piece, across the boundary of the two",
    .visible = "attention is scrambled on every rank, from the first loss on",
    .checks = "oracle,placement",
    .source = "DeepSpeed #2198; Megatron-Bridge #1818; TE #394; slapo #46; vllm #36242; ChatLearn #277; Megatron-LM #7117/#4728",
    .scenario = "fault_tp_qkv_split_order.json",
    .signature = "cut-differs",
    .parts_count = 1,
    .parts = {{"tp.cut_order", "never", "", 0, AT_EVERYWHERE}},
};
