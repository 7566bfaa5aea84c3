/* ep-softmax-dim: the router's softmax goes over the tokens of a micro-batch, not over a token's experts. */
#include "scenarios/fault.h"

const struct fault fault_ep_softmax_dim = {
    .name = "ep-softmax-dim",
    .component = "moe.router",
    .injected = "the router's softmax goes over the tokens of a micro-batch, not over a token's experts",
    .visible = "scores of a token do not sum to 1; routing depends on which tokens share the micro-batch",
    .checks = "oracle,routing",
    .source = "DeepSpeed #2110",
    .scenario = "fault_ep_softmax_dim.json",
    .signature = "over-tokens",
    .parts_count = 1,
    .parts = {{"moe.score_axis", "never", "", 0, AT_EVERYWHERE}},
};
