/* coll-avg-rounding: an average is made as a sum of contributions times the rounded 1/n. */
#include "scenarios/fault.h"

const struct fault fault_coll_avg_rounding = {
    .name = "coll-avg-rounding",
    .component = "collectives",
    .injected = "an average is made as a sum of contributions times the rounded 1/n",
    .visible = "the last bits depend on who implements it",
    .checks = "precision",
    .source = "torchcomms #4069",
    .scenario = "fault_coll_avg_rounding.json",
    .signature = "rounded",
    .parts_count = 1,
    .parts = {{"loss.report_reduce", "average-first", "", 0, AT_EVERYWHERE}},
};
