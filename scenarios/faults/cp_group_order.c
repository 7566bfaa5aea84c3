/* cp-group-order: ranks come in another order in the gather than in the layout. */
#include "scenarios/fault.h"

const struct fault fault_cp_group_order = {
    .name = "cp-group-order",
    .component = "cp.position",
    .injected = "ranks come in another order in the gather than in the layout",
    .visible = "as with another layout, without any mask nothing",
    .checks = "oracle,influence",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_group_order.json",
    .signature = "wrong-positions",
    .parts_count = 1,
    .parts = {{"cp.kv_gather", "permute-chunks", "", 0, AT_EVERYWHERE}},
};
