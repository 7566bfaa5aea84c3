/* clip-wrong-group: the norm is summed over all ranks, replicas too. */
#include "scenarios/fault.h"

const struct fault fault_clip_wrong_group = {
    .name = "clip-wrong-group",
    .component = "grad.norm",
    .injected = "the norm is summed over all ranks, replicas too",
    .visible = "the norm is too large by the root of the replicas",
    .checks = "grad-norm",
    .source = "DeepSpeed #551; VeOmni #184, #862",
    .scenario = "fault_clip_wrong_group.json",
    .signature = "other-sum",
    .parts_count = 1,
    .parts = {{"clip.group", "never", "", 0, AT_EVERYWHERE}},
};
