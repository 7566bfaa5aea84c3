/* ep-bias-count-not-reduced: the counts behind the selection bias are not summed over the data ranks. */
#include "scenarios/fault.h"

const struct fault fault_ep_bias_count_not_reduced = {
    .name = "ep-bias-count-not-reduced",
    .component = "moe.balancing",
    .injected = "the counts behind the selection bias are not summed over the data ranks",
    .visible = "the copies of the bias drift apart, and ranks route equal tokens to other experts",
    .checks = "replica-equality,counters",
    .source = "torchtitan #4154",
    .scenario = "fault_ep_bias_count_not_reduced.json",
    .signature = "missing-ranks",
    .parts_count = 1,
    .parts = {{"ep.count_reduce", "skip", "", 0, AT_EVERYWHERE}},
};
