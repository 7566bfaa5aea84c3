/* ep-bias-low-precision: the selection bias is kept in bf16. */
#include "scenarios/fault.h"

const struct fault fault_ep_bias_low_precision = {
    .name = "ep-bias-low-precision",
    .component = "moe.router",
    .injected = "the selection bias is kept in bf16",
    .visible = "small updates of the bias vanish once it has grown",
    .checks = "precision,counters",
    .source = "Megatron-LM #1482 (8dd03a39cc)",
    .scenario = "fault_ep_bias_low_precision.json",
    .signature = "rounded",
    .parts_count = 1,
    .parts = {{"moe.bias", "round", "bf16", 0, AT_EVERYWHERE}},
};
