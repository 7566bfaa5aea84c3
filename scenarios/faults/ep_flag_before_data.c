/* ep-flag-before-data: rows are taken as arrived before all of them are. */
#include "scenarios/fault.h"

const struct fault fault_ep_flag_before_data = {
    .name = "ep-flag-before-data",
    .component = "async",
    .injected = "rows are taken as arrived before all of them are",
    .visible = "experts read some rows that are not there yet",
    .checks = "race,conservation",
    .source = "DeepEP #310, #700; Primus-Turbo #482; NCCL-EP 3f29db27",
    .scenario = "fault_ep_flag_before_data.json",
    .signature = "read-early",
    .parts_count = 1,
    .parts = {{"ep.dispatch", "torn", "", 0, AT_EVERYWHERE}},
};
