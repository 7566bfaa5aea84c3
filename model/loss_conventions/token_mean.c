/* token_mean: the mean over all valid tokens of the step. A micro-batch's summed loss is divided by the valid
 * tokens of the whole step before backward; the data ranks' gradients are added up. So every valid token weighs
 * the same, however the batch is cut.
 *     weight of a token = 1/N, loss printed = sum of S * 1/N
 * Source: the objective that the others are held against. */
#include "model/loss_convention.h"

const struct loss_convention loss_convention_token_mean = {
    .name = "token_mean",
    .system = "the mean over all valid tokens of the step",
    .what = "A micro-batch's summed loss is divided by the valid tokens of the whole step before backward; the "
            "data ranks' gradients are added up. So every valid token weighs the same, however the batch is cut.",
    .source = "the objective that the others are held against",
    .denominator = "N",
    .scale = "1",
    .combine = LOSS_COMBINE_SUM,
    .grad_scale = "1",
    .counts_at_end = false,
    .weight = "1/N",
    .logged = "1/N",
    .logs_counts = false,
    .logged_format = FORMAT_FP64,
};
