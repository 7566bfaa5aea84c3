/* opt-unused-decayed: a parameter that nothing used is given zeros for a gradient. */
#include "scenarios/fault.h"

const struct fault fault_opt_unused_decayed = {
    .name = "opt-unused-decayed",
    .component = "optimizer",
    .injected = "a parameter that nothing used is given zeros for a gradient",
    .visible = "weight decay and momentum act on it",
    .checks = "update-coverage",
    .source = "pytorch #28294",
    .scenario = "fault_opt_unused_decayed.json",
    .signature = "unused-updated",
    .parts_count = 1,
    .parts = {{"optimizer.no_gradient", "never", "", 0, AT_EVERYWHERE}},
};
