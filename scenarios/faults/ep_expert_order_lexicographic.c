/* ep-expert-order-lexicographic: experts' parameters are read by the string order of their names: 10 comes before 2. */
#include "scenarios/fault.h"

const struct fault fault_ep_expert_order_lexicographic = {
    .name = "ep-expert-order-lexicographic",
    .component = "moe.state",
    .injected = "experts' parameters are read by the string order of their names: 10 comes before 2",
    .visible = "experts are permuted against the columns of the router",
    .checks = "oracle",
    .source = "torchtitan #1918",
    .scenario = "fault_ep_expert_order_lexicographic.json",
    .signature = "permuted",
    .parts_count = 1,
    .parts = {{"ep.expert_order", "never", "", 0, AT_EVERYWHERE}},
};
