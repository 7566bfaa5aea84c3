/* automodel: NeMo AutoModel's pipeline path. Backward starts from the sum of the tokens' losses; FSDP averages
 * over the data ranks; at the end every gradient is divided by the label tokens of the step over the data ranks:
 * N/D, which undoes the average.
 *     weight of a token = 1/N, loss printed = sum of S * 1/N
 * Source: NeMo AutoModel scale_grads_and_clip_grad_norm. */
#include "model/loss_convention.h"

const struct loss_convention loss_convention_automodel = {
    .name = "automodel",
    .system = "NeMo AutoModel's pipeline path",
    .what = "Backward starts from the sum of the tokens' losses; FSDP averages over the data ranks; at the end "
            "every gradient is divided by the label tokens of the step over the data ranks: N/D, which undoes the "
            "average.",
    .source = "NeMo AutoModel scale_grads_and_clip_grad_norm",
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
