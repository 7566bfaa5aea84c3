/* coll-wrong-group: parameters are gathered in a group of the same size, over replicas instead of shards. The group
 * is the caller's argument: the site's component, not the collectives' (scenarios/diagnosis.h). */
#include "scenarios/fault.h"

const struct fault fault_coll_wrong_group = {
    .name = "coll-wrong-group",
    .component = "fsdp.params",
    .injected = "parameters are gathered in a group of the same size, over replicas instead of shards",
    .visible = "right shapes, other numbers: each rank sees its own shard again",
    .checks = "collective-match,version",
    .source = "DeepSpeed #7551, PaddleFleet #360",
    .scenario = "fault_coll_wrong_group.json",
    .signature = "wrong-group",
    .parts_count = 1,
    .parts = {{"fsdp.unshard", "wrong-group", "dp_replicate", 0, AT_STAGE_MIDDLE}},
};
