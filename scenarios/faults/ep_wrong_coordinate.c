/* ep-wrong-coordinate: a rank takes its place among the experts from the tensor-parallel group, which is as large. */
#include "scenarios/fault.h"

const struct fault fault_ep_wrong_coordinate = {
    .name = "ep-wrong-coordinate",
    .component = "ep.dispatch",
    .injected = "a rank takes its place among the experts from the tensor-parallel group, which is as large",
    .visible = "the rows of one rank's experts are computed by another's",
    .checks = "oracle,conservation",
    .source = "Megatron-LM #7452; torchtitan #2842",
    .scenario = "fault_ep_wrong_coordinate.json",
    .signature = "other-place",
    .parts_count = 1,
    .parts = {{"ep.coordinate", "never", "", 0, AT_EVERYWHERE}},
};
