/* ep-wgrad-deferred-lost: the deferred weight gradient of a step's last micro-batch is never computed for the experts. */
#include "scenarios/fault.h"

const struct fault fault_ep_wgrad_deferred_lost = {
    .name = "ep-wgrad-deferred-lost",
    .component = "moe.experts",
    .injected = "the deferred weight gradient of a step's last micro-batch is never computed for the experts",
    .visible = "experts miss one micro-batch of each step",
    .checks = "contribution,token-weight",
    .source = "MindSpeed 68a2b6b7",
    .scenario = "fault_ep_wgrad_deferred_lost.json",
    .signature = "missing-microbatch",
    .parts_count = 1,
    .parts = {{"ep.weight_gradient", "never", "", 0, AT_LAST_MICROBATCH}},
};
