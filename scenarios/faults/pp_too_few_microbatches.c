/* pp-too-few-microbatches: a stage warms up with as many micro-batches as the schedule has with m >= p, though there are fewer. */
#include "scenarios/fault.h"

const struct fault fault_pp_too_few_microbatches = {
    .name = "pp-too-few-microbatches",
    .component = "schedule",
    .injected = "a stage warms up with as many micro-batches as the schedule has with m >= p, though there are fewer",
    .visible = "deadlock: a stage waits for an activation that nobody sends",
    .checks = "liveness",
    .source = "torchtitan #775",
    .scenario = "fault_pp_too_few_microbatches.json",
    .signature = "deadlock",
    .parts_count = 1,
    .parts = {{"pp.schedule", "never", "", 0, AT_EVERYWHERE}},
};
