/* ep-shared-expert-times-ep: the shared expert's output goes into the sum over ranks that each have it. */
#include "scenarios/fault.h"

const struct fault fault_ep_shared_expert_times_ep = {
    .name = "ep-shared-expert-times-ep",
    .component = "ep.combine",
    .injected = "the shared expert's output goes into the sum over ranks that each have it",
    .visible = "the shared expert counts as often as there are expert-parallel ranks",
    .checks = "oracle,conservation",
    .source = "the first reports of hpsim's forerunner",
    .scenario = "fault_ep_shared_expert_times_ep.json",
    .signature = "times-ranks",
    .parts_count = 1,
    .parts = {{"ep.shared_once", "never", "", 0, AT_EVERYWHERE}},
};
