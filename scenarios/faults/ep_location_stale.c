/* ep-location-stale: rows are numbered before the drop, so that kept pairs lie outside of their expert's room. */
#include "scenarios/fault.h"

const struct fault fault_ep_location_stale = {
    .name = "ep-location-stale",
    .component = "moe.capacity",
    .injected = "rows are numbered before the drop, so that kept pairs lie outside of their expert's room",
    .visible = "kept pairs have no row, and their experts' outputs are missing",
    .checks = "oracle,conservation,counters",
    .source = "DeepSpeed #7163",
    .scenario = "fault_ep_location_stale.json",
    .signature = "lost",
    .parts_count = 1,
    .parts = {{"moe.locations", "never", "", 0, AT_EVERYWHERE}},
};
