/* opt-param-group-collision: both groups of parameters, with weight decay and without, have one key, so that the settings of the last stand for both. */
#include "scenarios/fault.h"

const struct fault fault_opt_param_group_collision = {
    .name = "opt-param-group-collision",
    .component = "optimizer",
    .injected = "both groups of parameters, with weight decay and without, have one key, so that the settings of the last stand for both",
    .visible = "matrices are not drawn towards 0 any more",
    .checks = "oracle,update-coverage",
    .source = "Megatron-LM #4705 (27e312ca10), where it is the learning rate, at load",
    .scenario = "fault_opt_param_group_collision.json",
    .signature = "other-group",
    .parts_count = 1,
    .parts = {{"optimizer.group", "never", "", 0, AT_EVERYWHERE}},
};
