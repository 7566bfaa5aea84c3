/* ep-restore-order-transposed: results are cut by counts [rank][expert] when they are sorted back by rank, where [expert][rank] is due. */
#include "scenarios/fault.h"

const struct fault fault_ep_restore_order_transposed = {
    .name = "ep-restore-order-transposed",
    .component = "ep.combine",
    .injected = "results are cut by counts [rank][expert] when they are sorted back by rank, where [expert][rank] is due",
    .visible = "results of one rank's tokens go to another's, though as many rows come back as went out",
    .checks = "oracle,conservation",
    .source = "Megatron-LM 54d4b3ddbb (!2824)",
    .scenario = "fault_ep_restore_order_transposed.json",
    .signature = "other-row",
    .parts_count = 1,
    .parts = {{"ep.restore_order", "never", "", 0, AT_EVERYWHERE}},
};
