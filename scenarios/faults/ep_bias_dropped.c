/* ep-bias-dropped: the router chooses by its scores alone, without the selection bias. */
#include "scenarios/fault.h"

const struct fault fault_ep_bias_dropped = {
    .name = "ep-bias-dropped",
    .component = "moe.router",
    .injected = "the router chooses by its scores alone, without the selection bias",
    .visible = "experts are chosen as if nobody balanced them, however far the bias is moved",
    .checks = "oracle,routing",
    .source = "DeepSpeed #8358",
    .scenario = "fault_ep_bias_dropped.json",
    .signature = "without-bias",
    .parts_count = 1,
    .parts = {{"moe.choice_bias", "never", "", 0, AT_EVERYWHERE}},
};
