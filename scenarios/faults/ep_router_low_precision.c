/* ep-router-low-precision: the router's scores are computed in bf16. */
#include "scenarios/fault.h"

const struct fault fault_ep_router_low_precision = {
    .name = "ep-router-low-precision",
    .component = "moe.router",
    .injected = "the router's scores are computed in bf16",
    .visible = "scores tie, and who is chosen depends on the layout",
    .checks = "oracle,precision,routing",
    .source = "Megatron-LM #2765 (5f668c10ec); sglang #31213; AstrAI #57",
    .scenario = "fault_ep_router_low_precision.json",
    .signature = "rounded",
    .parts_count = 1,
    .parts = {{"moe.scores", "round", "bf16", 0, AT_EVERYWHERE}},
};
