/* ep-expert-bias-unscaled: an expert's output bias is added after the token's weight was multiplied, not before. */
#include "scenarios/fault.h"

const struct fault fault_ep_expert_bias_unscaled = {
    .name = "ep-expert-bias-unscaled",
    .component = "moe.experts",
    .injected = "an expert's output bias is added after the token's weight was multiplied, not before",
    .visible = "outputs are off by (1 - weight) times the bias",
    .checks = "oracle,routing",
    .source = "Megatron-LM #5850 (e4ea85970b); Automodel #2591",
    .scenario = "fault_ep_expert_bias_unscaled.json",
    .signature = "altered",
    .parts_count = 1,
    .parts = {{"moe.expert_bias", "never", "", 0, AT_EVERYWHERE}},
};
