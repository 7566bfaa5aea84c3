/* cp-gather-order: gathered rows are taken in the order of ranks, not of positions. */
#include "scenarios/fault.h"

const struct fault fault_cp_gather_order = {
    .name = "cp-gather-order",
    .component = "cp.position",
    .injected = "gathered rows are taken in the order of ranks, not of positions",
    .visible = "masks hide other keys than they should",
    .checks = "oracle,influence",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_gather_order.json",
    .signature = "wrong-positions",
    .parts_count = 1,
    .parts = {{"cp.gather_order", "never", "", 0, AT_EVERYWHERE}},
};
