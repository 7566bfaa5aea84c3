/* ep-bias-update-skipped: the loop that moves the selection biases leaves a layer out. */
#include "scenarios/fault.h"

const struct fault fault_ep_bias_update_skipped = {
    .name = "ep-bias-update-skipped",
    .component = "moe.balancing",
    .injected = "the loop that moves the selection biases leaves a layer out",
    .visible = "one layer never balances; its bias stays 0",
    .checks = "update-coverage,counters",
    .source = "torchtitan #3686, #3666, #1689",
    .scenario = "fault_ep_bias_update_skipped.json",
    .signature = "not-updated",
    .parts_count = 1,
    .parts = {{"moe.update_bias", "never", "", 0, AT_LAYER_MIDDLE}},
};
