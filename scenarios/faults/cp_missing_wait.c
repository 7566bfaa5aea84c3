/* cp-missing-wait: a block is computed before it was waited for. */
#include "scenarios/fault.h"

const struct fault fault_cp_missing_wait = {
    .name = "cp-missing-wait",
    .component = "async",
    .injected = "a block is computed before it was waited for",
    .visible = "NaN or an older block, as timing has it",
    .checks = "oracle,race",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_missing_wait.json",
    .signature = "read-early",
    .parts_count = 1,
    .parts = {{"cp.kv_hop", "late", "", 0, AT_HOP_LAST}},
};
