/* log-loss-divided-twice: the loss, already a mean, is divided by the number of micro-batches once more before it is printed. */
#include "scenarios/fault.h"

const struct fault fault_log_loss_divided_twice = {
    .name = "log-loss-divided-twice",
    .component = "metrics",
    .injected = "the loss, already a mean, is divided by the number of micro-batches once more before it is printed",
    .visible = "the reported loss is 1/M of the right one; gradients are right",
    .checks = "logged-loss",
    .source = "AReaL PR 1273 (a loss that is already normalized, divided by the micro-batches again)",
    .scenario = "fault_log_loss_divided_twice.json",
    .signature = "1/M",
    .parts_count = 1,
    .parts = {{"metrics.loss", "times", "1/M", 0, AT_EVERYWHERE}},
};
