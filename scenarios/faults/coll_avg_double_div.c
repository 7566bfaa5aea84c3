/* coll-avg-double-div: a small average is divided by the number of members twice. What each rank gives to the
 * average and gets of it is noted, so a caller that divided before can be told from it. */
#include "scenarios/fault.h"

const struct fault fault_coll_avg_double_div = {
    .name = "coll-avg-double-div",
    .component = "collectives",
    .injected = "a small average is divided by the number of members twice",
    .visible = "the printed loss is 1/D of what it is",
    .checks = "logged-loss",
    .source = "torch-xpu-ops #3020",
    .scenario = "fault_coll_avg_double_div.json",
    .signature = "1/D",
    .parts_count = 1,
    .parts = {{"loss.report_reduce", "average-twice", "", 0, AT_EVERYWHERE}},
};
