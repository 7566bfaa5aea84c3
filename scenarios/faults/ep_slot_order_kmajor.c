/* ep-slot-order-kmajor: where a full expert keeps its first pairs, all first choices come before all second ones. */
#include "scenarios/fault.h"

const struct fault fault_ep_slot_order_kmajor = {
    .name = "ep-slot-order-kmajor",
    .component = "moe.capacity",
    .injected = "where a full expert keeps its first pairs, all first choices come before all second ones",
    .visible = "other tokens are dropped than the earlier ones are due to crowd out; as many",
    .checks = "oracle,conservation",
    .source = "DeepSpeed moe/sharded_moe.py (top2gating), where that order is the one meant",
    .scenario = "fault_ep_slot_order_kmajor.json",
    .signature = "choices-first",
    .parts_count = 1,
    .parts = {{"moe.slot_order", "never", "", 0, AT_EVERYWHERE}},
};
