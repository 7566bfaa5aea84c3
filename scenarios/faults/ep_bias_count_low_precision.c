/* ep-bias-count-low-precision: the counts behind the selection bias are added up in bf16. */
#include "scenarios/fault.h"

const struct fault fault_ep_bias_count_low_precision = {
    .name = "ep-bias-count-low-precision",
    .component = "moe.balancing",
    .injected = "the counts behind the selection bias are added up in bf16",
    .visible = "counts above 256 are rounded: the bias of experts that are nearly balanced moves the wrong way, or by a tie",
    .checks = "counters",
    .source = "Megatron-LM #7081",
    .scenario = "fault_ep_bias_count_low_precision.json",
    .signature = "rounded",
    .parts_count = 1,
    .parts = {{"moe.counts", "round", "bf16", 0, AT_EVERYWHERE}},
};
