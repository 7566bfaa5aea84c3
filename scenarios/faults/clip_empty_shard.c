/* clip-empty-shard: the largest magnitude of a shard without elements has no value. */
#include "scenarios/fault.h"

const struct fault fault_clip_empty_shard = {
    .name = "clip-empty-shard",
    .component = "grad.norm",
    .injected = "the largest magnitude of a shard without elements has no value",
    .visible = "the norm is not finite, and nothing is trained",
    .checks = "grad-norm",
    .source = "Megatron-LM #5530",
    .scenario = "fault_clip_empty_shard.json",
    .signature = "other-sum",
    .parts_count = 1,
    .parts = {{"clip.empty_shard", "never", "", 0, AT_EVERYWHERE}},
};
