/* ep-empty-rank-graph: a rank whose experts got no row takes no part in the exchange of gradients. */
#include "scenarios/fault.h"

const struct fault fault_ep_empty_rank_graph = {
    .name = "ep-empty-rank-graph",
    .component = "ep.dispatch",
    .injected = "a rank whose experts got no row takes no part in the exchange of gradients",
    .visible = "the other ranks wait for it",
    .checks = "liveness",
    .source = "Megatron-LM #3626, #1877, #4851",
    .scenario = "fault_ep_empty_rank_graph.json",
    .signature = "deadlock",
    .parts_count = 1,
    .parts = {{"ep.empty_rank", "never", "", 0, AT_EVERYWHERE}},
};
