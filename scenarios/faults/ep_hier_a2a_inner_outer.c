/* ep-hier-a2a-inner-outer: for an all-to-all in two steps rows are sorted by node first, where they first go to members of the own node. */
#include "scenarios/fault.h"

const struct fault fault_ep_hier_a2a_inner_outer = {
    .name = "ep-hier-a2a-inner-outer",
    .component = "ep.dispatch",
    .injected = "for an all-to-all in two steps rows are sorted by node first, where they first go to members of the own node",
    .visible = "tokens reach experts that they did not choose",
    .checks = "oracle,conservation",
    .source = "MindFormers, all-to-all in two groups",
    .scenario = "fault_ep_hier_a2a_inner_outer.json",
    .signature = "other-row",
    .parts_count = 1,
    .parts = {{"ep.inner_order", "never", "", 0, AT_EVERYWHERE}},
};
