/* ep-empty-expert-skip: the parameters of an expert that got no row on a rank are passed over by the optimizer as if they had no gradient. */
#include "scenarios/fault.h"

const struct fault fault_ep_empty_expert_skip = {
    .name = "ep-empty-expert-skip",
    .component = "moe.experts",
    .injected = "the parameters of an expert that got no row on a rank are passed over by the optimizer as if they had no gradient",
    .visible = "shards of rarely used experts lag behind: no decay, no momentum, another step count",
    .checks = "oracle,update-coverage",
    .source = "Megatron-LM eef48ef31c; TransformerEngine 971001394",
    .scenario = "fault_ep_empty_expert_skip.json",
    .signature = "not-updated",
    .parts_count = 1,
    .parts = {{"moe.empty_expert", "never", "", 0, AT_EVERYWHERE}},
};
