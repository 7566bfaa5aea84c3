/* ep-combine-missing: ranks that share the experts keep their own experts' part of the output, and never sum it. */
#include "scenarios/fault.h"

const struct fault fault_ep_combine_missing = {
    .name = "ep-combine-missing",
    .component = "ep.combine",
    .injected = "ranks that share the experts keep their own experts' part of the output, and never sum it",
    .visible = "each token gets a part of its experts",
    .checks = "oracle,conservation,communication-count",
    .source = "the first reports of hpsim's forerunner",
    .scenario = "fault_ep_combine_missing.json",
    .signature = "altered",
    .parts_count = 1,
    .parts = {{"ep.combine", "skip", "", 0, AT_EVERYWHERE}},
};
