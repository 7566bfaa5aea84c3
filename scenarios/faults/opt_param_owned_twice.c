/* opt-param-owned-twice: a layer's parameters stand twice in the map of owners. */
#include "scenarios/fault.h"

const struct fault fault_opt_param_owned_twice = {
    .name = "opt-param-owned-twice",
    .component = "optimizer",
    .injected = "a layer's parameters stand twice in the map of owners",
    .visible = "they are updated twice a step",
    .checks = "update-coverage",
    .source = "Megatron-LM #565; DeepSpeed #4482",
    .scenario = "fault_opt_param_owned_twice.json",
    .signature = "updated-twice",
    .parts_count = 1,
    .parts = {{"optimizer.entries", "set", "2", 0, AT_LAYER_MIDDLE}},
};
