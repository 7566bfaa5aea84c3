/* log-loss-denominator: the loss, already a mean, is divided by the valid tokens again before it is printed. */
#include "scenarios/fault.h"

const struct fault fault_log_loss_denominator = {
    .name = "log-loss-denominator",
    .component = "metrics",
    .injected = "the loss, already a mean, is divided by the valid tokens again before it is printed",
    .visible = "the reported loss is 1/N of the right one; gradients are right",
    .checks = "logged-loss",
    .source = "torchtitan #1758",
    .scenario = "fault_log_loss_denominator.json",
    .signature = "1/N",
    .parts_count = 1,
    .parts = {{"metrics.loss", "times", "1/N", 0, AT_EVERYWHERE}},
};
