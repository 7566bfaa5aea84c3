/* cp-local-stats-backward: gradients are made with the block's output and log-sum-exp, not the whole row's. */
#include "scenarios/fault.h"

const struct fault fault_cp_local_stats_backward = {
    .name = "cp-local-stats-backward",
    .component = "cp.backward",
    .injected = "gradients are made with the block's output and log-sum-exp, not the whole row's",
    .visible = "output right, dq and dk wrong",
    .checks = "oracle,gradient-owner",
    .source = "a kind of mistake of ring attention libraries",
    .scenario = "fault_cp_local_stats_backward.json",
    .signature = "all",
    .parts_count = 1,
    .parts = {{"cp.backward_stats", "never", "", 0, AT_EVERYWHERE}},
};
