/* ep-bias-count-padding: padding tokens are counted behind the selection bias. */
#include "scenarios/fault.h"

const struct fault fault_ep_bias_count_padding = {
    .name = "ep-bias-count-padding",
    .component = "moe.balancing",
    .injected = "padding tokens are counted behind the selection bias",
    .visible = "the bias is pushed away from the experts that padding goes to",
    .checks = "counters",
    .source = "Megatron-LM #6111, #6114 (723db5a727)",
    .scenario = "fault_ep_bias_count_padding.json",
    .signature = "padding",
    .parts_count = 1,
    .parts = {{"moe.count_padding", "never", "", 0, AT_EVERYWHERE}},
};
