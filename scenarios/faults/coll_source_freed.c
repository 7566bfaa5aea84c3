/* coll-source-freed: the memory that a reduction sends from is freed before it was read. */
#include "scenarios/fault.h"

const struct fault fault_coll_source_freed = {
    .name = "coll-source-freed",
    .component = "async",
    .injected = "the memory that a reduction sends from is freed before it was read",
    .visible = "garbage in the sum",
    .checks = "race",
    .source = "NCCL-EP 10945c51",
    .scenario = "fault_coll_source_freed.json",
    .signature = "overwritten",
    .parts_count = 1,
    .parts = {{"fsdp.reduce_grad", "free-source", "", 0, AT_DATA_RANK_ONE}},
};
