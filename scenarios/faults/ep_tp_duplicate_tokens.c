/* ep-tp-duplicate-tokens: each tensor-parallel rank sends the rows of all tokens to the experts, not of its own run of them. */
#include "scenarios/fault.h"

const struct fault fault_ep_tp_duplicate_tokens = {
    .name = "ep-tp-duplicate-tokens",
    .component = "ep.dispatch",
    .injected = "each tensor-parallel rank sends the rows of all tokens to the experts, not of its own run of them",
    .visible = "experts' gradients count every token as often as there are tensor-parallel ranks",
    .checks = "oracle,conservation,contribution",
    .source = "tpu-inference #2248; vllm-ascend #6710",
    .scenario = "fault_ep_tp_duplicate_tokens.json",
    .signature = "duplicate-tokens",
    .parts_count = 1,
    .parts = {{"ep.token_share", "never", "", 0, AT_EVERYWHERE}},
};
