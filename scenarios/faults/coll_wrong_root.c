/* coll-wrong-root: the root of a broadcast is not the member that has the data, and all members agree on it. The
 * root is the caller's argument: the site's component, not the collectives'. */
#include "scenarios/fault.h"

const struct fault fault_coll_wrong_root = {
    .name = "coll-wrong-root",
    .component = "loss.report",
    .injected = "the root of a broadcast is not the member that has the data, and all members agree on it",
    .visible = "all print the number of a stage without a loss",
    .checks = "collective-match,logged-loss",
    .source = "a guess",
    .scenario = "fault_coll_wrong_root.json",
    .signature = "wrong-root",
    .parts_count = 1,
    .parts = {{"loss.report_broadcast", "wrong-root", "", 0, AT_EVERYWHERE}},
};
