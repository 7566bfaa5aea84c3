/* cp-wrong-group: blocks go round among the replicas, not in the context-parallel group. */
#include "scenarios/fault.h"

const struct fault fault_cp_wrong_group = {
    .name = "cp-wrong-group",
    .component = "cp.hop",
    .injected = "blocks go round among the replicas, not in the context-parallel group",
    .visible = "keys of another replica's sequences",
    .checks = "oracle,consumption",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_wrong_group.json",
    .signature = "wrong-group",
    .parts_count = 1,
    .parts = {{"cp.kv_hop", "wrong-group", "dp_replicate", 0, AT_EVERYWHERE}},
};
