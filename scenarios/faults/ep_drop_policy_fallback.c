/* ep-drop-policy-fallback: a full expert falls back to keeping its first tokens, where it is to keep those of largest weight. */
#include "scenarios/fault.h"

const struct fault fault_ep_drop_policy_fallback = {
    .name = "ep-drop-policy-fallback",
    .component = "moe.capacity",
    .injected = "a full expert falls back to keeping its first tokens, where it is to keep those of largest weight",
    .visible = "the later tokens of a micro-batch are always dropped",
    .checks = "oracle,conservation",
    .source = "Megatron-LM 7968fd6532",
    .scenario = "fault_ep_drop_policy_fallback.json",
    .signature = "position",
    .parts_count = 1,
    .parts = {{"moe.drop_policy", "never", "", 0, AT_EVERYWHERE}},
};
