/* coll-missing-wait: a layer computes before the all-gather of its parameters was waited for. */
#include "scenarios/fault.h"

const struct fault fault_coll_missing_wait = {
    .name = "coll-missing-wait",
    .component = "async",
    .injected = "a layer computes before the all-gather of its parameters was waited for",
    .visible = "NaN or the last parameters, as timing has it",
    .checks = "race,version",
    .source = "DeepEP #589, #600, MindSpeed e455517e",
    .scenario = "fault_coll_missing_wait.json",
    .signature = "read-early",
    .parts_count = 1,
    .parts = {{"fsdp.unshard", "late", "", 0, AT_LAYER_MIDDLE}},
};
