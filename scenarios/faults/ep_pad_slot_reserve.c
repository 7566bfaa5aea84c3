/* ep-pad-slot-reserve: rows of alignment are left for experts without rows where rows are counted, but not where they lie. */
#include "scenarios/fault.h"

const struct fault fault_ep_pad_slot_reserve = {
    .name = "ep-pad-slot-reserve",
    .component = "ep.dispatch",
    .injected = "rows of alignment are left for experts without rows where rows are counted, but not where they lie",
    .visible = "the rows of experts behind an empty one begin too late",
    .checks = "oracle,conservation",
    .source = "torchtitan #1651, #1718; NCCL-EP 55f5e169",
    .scenario = "fault_ep_pad_slot_reserve.json",
    .signature = "offset",
    .parts_count = 1,
    .parts = {{"ep.empty_slots", "never", "", 0, AT_EVERYWHERE}},
};
