/* hf_trainer: Hugging Face's Trainer. A micro-batch's summed loss is divided by num_items_in_batch: the labels of
 * all accumulation steps of this data rank that are not -100, counted before they are shifted, so that the last
 * token of each document counts too. The gradients' reduction averages over the data ranks
 * (average_tokens_across_devices off).
 *     weight of a token = 1/(n_rank_unshifted*D), loss printed = sum of S * 1/(n_rank_unshifted*D)
 * Source: transformers loss/loss_utils.py, PRs #34191 and #34373, issue #38448. */
#include "model/loss_convention.h"

const struct loss_convention loss_convention_hf_trainer = {
    .name = "hf_trainer",
    .system = "Hugging Face's Trainer",
    .what = "A micro-batch's summed loss is divided by num_items_in_batch: the labels of all accumulation steps "
            "of this data rank that are not -100, counted before they are shifted, so that the last token of each "
            "document counts too. The gradients' reduction averages over the data ranks "
            "(average_tokens_across_devices off).",
    .source = "transformers loss/loss_utils.py, PRs #34191 and #34373, issue #38448",
    .denominator = "n_rank_unshifted",
    .scale = "1",
    .combine = LOSS_COMBINE_MEAN,
    .grad_scale = "1",
    .counts_at_end = false,
    .weight = "1/(n_rank_unshifted*D)",
    .logged = "1/(n_rank_unshifted*D)",
    .logs_counts = false,
    .logged_format = FORMAT_FP64,
};
