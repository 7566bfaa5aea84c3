/* loss-mean-of-means: the loss is the mean of the micro-batches' means although they hold unequal numbers of valid tokens. */
#include "scenarios/fault.h"

const struct fault fault_loss_mean_of_means = {
    .name = "loss-mean-of-means",
    .component = "pp.loss",
    .injected = "the loss is the mean of the micro-batches' means although they hold unequal numbers of valid tokens",
    .visible = "loss and gradients depend on how the batch is cut",
    .checks = "token-weight,logged-loss",
    .source = "transformers PR #34191; Unsloth, October 2024",
    .scenario = "fault_loss_mean_of_means.json",
    .signature = "N/(n*M*D)",
    .parts_count = 1,
    .parts = {{"pp.loss.scale", "times", "N/(n*M*D)", 0, AT_EVERYWHERE}},
};
