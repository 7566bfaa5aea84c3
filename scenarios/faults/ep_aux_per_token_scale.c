/* ep-aux-per-token-scale: under a loss per token, the gradient of the auxiliary losses is not multiplied by the tokens of the micro-batch. */
#include "scenarios/fault.h"

const struct fault fault_ep_aux_per_token_scale = {
    .name = "ep-aux-per-token-scale",
    .component = "moe.aux.loss",
    .injected = "under a loss per token, the gradient of the auxiliary losses is not multiplied by the tokens of the micro-batch",
    .visible = "the auxiliary losses weigh next to nothing",
    .checks = "oracle,scale-ledger",
    .source = "Megatron-LM 87d9d2506a (!2851)",
    .scenario = "fault_ep_aux_per_token_scale.json",
    .signature = "without-tokens",
    .parts_count = 1,
    .parts = {{"moe.aux_scale", "omit", "", 0, AT_EVERYWHERE}},
};
