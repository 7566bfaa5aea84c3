/* opt-param-unowned: a layer's parameters are in no optimizer's list. */
#include "scenarios/fault.h"

const struct fault fault_opt_param_unowned = {
    .name = "opt-param-unowned",
    .component = "optimizer",
    .injected = "a layer's parameters are in no optimizer's list",
    .visible = "they stay as they were",
    .checks = "update-coverage",
    .source = "Megatron-LM #565; DeepSpeed #4482",
    .scenario = "fault_opt_param_unowned.json",
    .signature = "not-updated",
    .parts_count = 1,
    .parts = {{"optimizer.owns", "never", "", 0, AT_LAYER_MIDDLE}},
};
