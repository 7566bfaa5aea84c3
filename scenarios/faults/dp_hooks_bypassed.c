/* dp-hooks-bypassed: the inner module is called, so that no gradient hook of the wrapper runs. */
#include "scenarios/fault.h"

const struct fault fault_dp_hooks_bypassed = {
    .name = "dp-hooks-bypassed",
    .component = "ddp",
    .injected = "the inner module is called, so that no gradient hook of the wrapper runs",
    .visible = "no reduction at all; replicas diverge",
    .checks = "contribution,replica-equality",
    .source = "pytorch #104336",
    .scenario = "fault_dp_hooks_bypassed.json",
    .signature = "never",
    .parts_count = 1,
    .parts = {{"ddp.hooks", "never", "", 0, AT_EVERYWHERE}},
};
