/* fsdp-uneven-tied-shard: the last row of a shard that has fewer rows than the others is left out. */
#include "scenarios/fault.h"

const struct fault fault_fsdp_uneven_tied_shard = {
    .name = "fsdp-uneven-tied-shard",
    .component = "fsdp.params",
    .injected = "the last row of a shard that has fewer rows than the others is left out",
    .visible = "those rows are never updated",
    .checks = "shard-cover",
    .source = "pytorch #176076; torchtitan #1136",
    .scenario = "fault_fsdp_uneven_tied_shard.json",
    .signature = "gap",
    .parts_count = 1,
    .parts = {{"fsdp.shard", "lose-range", "", 1, AT_EVERYWHERE}},
};
