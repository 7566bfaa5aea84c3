/* ep-buffer-in-flight: results are sent back from a buffer that the next operation clears while they are under way. */
#include "scenarios/fault.h"

const struct fault fault_ep_buffer_in_flight = {
    .name = "ep-buffer-in-flight",
    .component = "async",
    .injected = "results are sent back from a buffer that the next operation clears while they are under way",
    .visible = "tokens that get nothing from their experts",
    .checks = "race,conservation",
    .source = "DeepEP #580; prime-rl #3411; ROCm mori #80, #93",
    .scenario = "fault_ep_buffer_in_flight.json",
    .signature = "overwritten",
    .parts_count = 1,
    .parts = {{"ep.combine", "reuse-buffer", "", 0, AT_EVERYWHERE}},
};
