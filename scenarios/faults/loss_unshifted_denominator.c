/* loss-unshifted-denominator: labels are counted before they are shifted: the last token of each document, which predicts nothing, counts too. */
#include "scenarios/fault.h"

const struct fault fault_loss_unshifted_denominator = {
    .name = "loss-unshifted-denominator",
    .component = "loss.denominator",
    .injected = "labels are counted before they are shifted: the last token of each document, which predicts nothing, counts too",
    .visible = "loss and gradients are (T-1)/T of what is due",
    .checks = "token-weight",
    .source = "transformers #38448",
    .scenario = "fault_loss_unshifted_denominator.json",
    .signature = "N/N_unshifted",
    .parts_count = 1,
    .parts = {{"loss.denominator", "set", "N_unshifted", 0, AT_EVERYWHERE}},
};
