/* ep-topk-tie-order: of equal scores the highest expert is taken, not the lowest. */
#include "scenarios/fault.h"

const struct fault fault_ep_topk_tie_order = {
    .name = "ep-topk-tie-order",
    .component = "moe.router",
    .injected = "of equal scores the highest expert is taken, not the lowest",
    .visible = "other experts for tokens whose scores tie; no crash",
    .checks = "oracle,routing",
    .source = "Automodel #3140; sglang #31213; AstrAI #57",
    .scenario = "fault_ep_topk_tie_order.json",
    .signature = "tie-order",
    .parts_count = 1,
    .parts = {{"moe.tie", "never", "", 0, AT_EVERYWHERE}},
};
