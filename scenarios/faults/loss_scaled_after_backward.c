/* loss-scaled-after-backward: the summed loss is divided by the valid tokens only in the metric, after backward
 * was called on it. */
#include "scenarios/fault.h"

const struct fault fault_loss_scaled_after_backward = {
    .name = "loss-scaled-after-backward",
    .component = "pp.loss",
    .injected = "the summed loss is divided by the valid tokens only in the metric, after backward was called on it",
    .visible = "gradients are N times what is due; the reported loss is right",
    .checks = "scale-ledger",
    .source = "torchtitan #2972",
    .scenario = "fault_loss_scaled_after_backward.json",
    .signature = "N",
    .parts_count = 1,
    .parts = {{"pp.loss.scale", "times", "N", 0, AT_EVERYWHERE}},
};
