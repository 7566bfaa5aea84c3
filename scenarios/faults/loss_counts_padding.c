/* loss-counts-padding: padding and other ignored positions are counted in the denominator. */
#include "scenarios/fault.h"

const struct fault fault_loss_counts_padding = {
    .name = "loss-counts-padding",
    .component = "loss.denominator",
    .injected = "padding and other ignored positions are counted in the denominator",
    .visible = "loss and gradients are N / N_all of what is due",
    .checks = "token-weight",
    .source = "hyper-parallel #193",
    .scenario = "fault_loss_counts_padding.json",
    .signature = "N/N_all",
    .parts_count = 1,
    .parts = {{"loss.denominator", "set", "N_all", 0, AT_EVERYWHERE}},
};
