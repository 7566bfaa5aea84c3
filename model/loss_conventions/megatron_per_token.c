/* megatron_per_token: Megatron-LM with calculate_per_token_loss. Backward starts from the sum of the tokens'
 * losses. Gradients are added over the data ranks (factor 1.0, SUM); the last stage's count of valid tokens is
 * broadcast to all stages and added over the data ranks, and at the very end every gradient is multiplied by
 * 1/max(N, 1). Printed is the sum of losses over the sum of counts.
 *     weight of a token = 1/N, loss printed = sum of S * 1/N
 * Source: Megatron-LM core/pipeline_parallel/schedules.py, core/distributed/finalize_model_grads.py. */
#include "model/loss_convention.h"

const struct loss_convention loss_convention_megatron_per_token = {
    .name = "megatron_per_token",
    .system = "Megatron-LM with calculate_per_token_loss",
    .what = "Backward starts from the sum of the tokens' losses. Gradients are added over the data ranks (factor "
            "1.0, SUM); the last stage's count of valid tokens is broadcast to all stages and added over the data "
            "ranks, and at the very end every gradient is multiplied by 1/max(N, 1). Printed is the sum of losses "
            "over the sum of counts.",
    .source = "Megatron-LM core/pipeline_parallel/schedules.py, core/distributed/finalize_model_grads.py",
    .denominator = "1",
    .scale = "1",
    .combine = LOSS_COMBINE_SUM,
    .grad_scale = "1/N",
    .counts_at_end = true,
    .weight = "1/N",
    .logged = "1/N",
    .logs_counts = true,
    .logged_format = FORMAT_FP64,
};
