/* loss-report-last-microbatch: the reported loss is that of the last micro-batch alone. */
#include "scenarios/fault.h"

const struct fault fault_loss_report_last_microbatch = {
    .name = "loss-report-last-microbatch",
    .component = "loss.report",
    .injected = "the reported loss is that of the last micro-batch alone",
    .visible = "the reported loss is too low and noisy; gradients are right",
    .checks = "logged-loss",
    .source = "hyper-parallel",
    .scenario = "fault_loss_report_last_microbatch.json",
    .signature = "0",
    .parts_count = 1,
    .parts = {{"loss.report", "set", "0", 0, AT_MICROBATCHES_BUT_LAST}},
};
