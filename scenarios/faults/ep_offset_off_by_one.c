/* ep-offset-off-by-one: an expert's rows begin one row late, as where a sum that includes its own count is taken for its start. */
#include "scenarios/fault.h"

const struct fault fault_ep_offset_off_by_one = {
    .name = "ep-offset-off-by-one",
    .component = "moe.dispatch",
    .injected = "an expert's rows begin one row late, as where a sum that includes its own count is taken for its start",
    .visible = "the first row of each expert is computed by the expert before it",
    .checks = "oracle,conservation,row-identity",
    .source = "TransformerEngine #2907",
    .scenario = "fault_ep_offset_off_by_one.json",
    .signature = "offset",
    .parts_count = 1,
    .parts = {{"moe.expert_rows", "wrong-range", "", 0, AT_EVERYWHERE}},
};
