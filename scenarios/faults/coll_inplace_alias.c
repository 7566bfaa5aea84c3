/* coll-inplace-alias: an all-gather writes its output over its input, which is used again later. */
#include "scenarios/fault.h"

const struct fault fault_coll_inplace_alias = {
    .name = "coll-inplace-alias",
    .component = "collectives",
    .injected = "an all-gather writes its output over its input, which is used again later",
    .visible = "a shard holds the first member's numbers from then on",
    .checks = "collective-match",
    .source = "Megatron-LM #7452, Open MPI #9216",
    .scenario = "fault_coll_inplace_alias.json",
    .signature = "aliased",
    .parts_count = 1,
    .parts = {{"fsdp.unshard", "alias", "", 0, AT_LAYER_MIDDLE}},
};
