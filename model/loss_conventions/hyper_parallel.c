/* hyper_parallel: hyper-parallel's Trainer. Backward starts from the sum of the tokens' losses with a unit seed;
 * the reduction averages over the data ranks; at the very end every gradient is multiplied by the data ranks over
 * the valid tokens (and over the ranks that hold the same loss, 1 here).
 *     weight of a token = 1/N, loss printed = sum of S * 1/N
 * Source: hyper-parallel #227. */
#include "model/loss_convention.h"

const struct loss_convention loss_convention_hyper_parallel = {
    .name = "hyper_parallel",
    .system = "hyper-parallel's Trainer",
    .what = "Backward starts from the sum of the tokens' losses with a unit seed; the reduction averages over the "
            "data ranks; at the very end every gradient is multiplied by the data ranks over the valid tokens "
            "(and over the ranks that hold the same loss, 1 here).",
    .source = "hyper-parallel #227",
    .denominator = "1",
    .scale = "1",
    .combine = LOSS_COMBINE_MEAN,
    .grad_scale = "D/N",
    .counts_at_end = true,
    .weight = "1/N",
    .logged = "1/N",
    .logs_counts = true,
    .logged_format = FORMAT_FP64,
};
