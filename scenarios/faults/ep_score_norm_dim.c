/* ep-score-norm-dim: weights are normalized over the tokens, not over a token's choices. */
#include "scenarios/fault.h"

const struct fault fault_ep_score_norm_dim = {
    .name = "ep-score-norm-dim",
    .component = "moe.router",
    .injected = "weights are normalized over the tokens, not over a token's choices",
    .visible = "weights far too small, the smaller the more tokens a micro-batch has",
    .checks = "oracle,routing",
    .source = "MegaBlocks #87 (04e4f1f)",
    .scenario = "fault_ep_score_norm_dim.json",
    .signature = "over-tokens",
    .parts_count = 1,
    .parts = {{"moe.normalize_axis", "never", "", 0, AT_EVERYWHERE}},
};
