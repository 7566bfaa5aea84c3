/* ep-bias-leaks-into-weights: the weights of the chosen experts are made from scores with the selection bias in them. */
#include "scenarios/fault.h"

const struct fault fault_ep_bias_leaks_into_weights = {
    .name = "ep-bias-leaks-into-weights",
    .component = "moe.router",
    .injected = "the weights of the chosen experts are made from scores with the selection bias in them",
    .visible = "outputs depend on the balancing bias; nothing is wrong before the first update of the bias",
    .checks = "oracle,routing",
    .source = "Megatron-LM eec34ff3ae (!3209)",
    .scenario = "fault_ep_bias_leaks_into_weights.json",
    .signature = "with-bias",
    .parts_count = 1,
    .parts = {{"moe.combine_scores", "never", "", 0, AT_EVERYWHERE}},
};
