/* loss-not-divided: each micro-batch's loss is its own mean, backward is seeded with 1, and nothing divides by the number of micro-batches. */
#include "scenarios/fault.h"

const struct fault fault_loss_not_divided = {
    .name = "loss-not-divided",
    .component = "pp.loss",
    .injected = "each micro-batch's loss is its own mean, backward is seeded with 1, and nothing divides by the number of micro-batches",
    .visible = "gradients are M times a mean of means (M x D times with a summing reduction); the logged loss is right",
    .checks = "token-weight",
    .source = "hyper-parallel, core pipeline schedule",
    .scenario = "fault_loss_not_divided.json",
    .signature = "M",
    .parts_count = 1,
    .parts = {{"pp.loss.scale", "times", "N/(n*A)", 0, AT_EVERYWHERE}},
};
