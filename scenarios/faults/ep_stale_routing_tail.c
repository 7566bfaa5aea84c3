/* ep-stale-routing-tail: the map of rows, which is as large as without dropped tokens, is not cleared behind its own rows. */
#include "scenarios/fault.h"

const struct fault fault_ep_stale_routing_tail = {
    .name = "ep-stale-routing-tail",
    .component = "ep.dispatch",
    .injected = "the map of rows, which is as large as without dropped tokens, is not cleared behind its own rows",
    .visible = "rows of the last use of the map are computed again, and added to tokens of this one",
    .checks = "oracle,conservation",
    .source = "NCCL-EP 18405dbb, e00e87e3",
    .scenario = "fault_ep_stale_routing_tail.json",
    .signature = "counts",
    .parts_count = 1,
    .parts = {{"ep.map_tail", "not-zeroed", "", 0, AT_EVERYWHERE}},
};
