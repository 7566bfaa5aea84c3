/* loss-report-world-mean: the reported loss is averaged over all ranks, stages without a loss counting 0. */
#include "scenarios/fault.h"

const struct fault fault_loss_report_world_mean = {
    .name = "loss-report-world-mean",
    .component = "loss.report",
    .injected = "the reported loss is averaged over all ranks, stages without a loss counting 0",
    .visible = "the reported loss is 1/P of the right one; gradients are right",
    .checks = "logged-loss",
    .source = "torchtitan #547",
    .scenario = "fault_loss_report_world_mean.json",
    .signature = "1/P",
    .parts_count = 1,
    .parts = {{"loss.report_reduce", "wrong-group", "world", 0, AT_EVERYWHERE}},
};
