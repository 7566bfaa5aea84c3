/* megatron: Megatron-LM, default. A micro-batch's loss is its own mean, divided by the micro-batches; the
 * gradients' reduction averages over the data ranks: a mean of means. Printed is the sum of losses over the sum of
 * counts, the token mean: where the micro-batches' counts differ that is not what is optimized.
 *     weight of a token = 1/(n*M*D), loss printed = sum of S * 1/N
 * Source: Megatron-LM core/pipeline_parallel/schedules.py, core/distributed/distributed_data_parallel.py. */
#include "model/loss_convention.h"

const struct loss_convention loss_convention_megatron = {
    .name = "megatron",
    .system = "Megatron-LM, default",
    .what = "A micro-batch's loss is its own mean, divided by the micro-batches; the gradients' reduction "
            "averages over the data ranks: a mean of means. Printed is the sum of losses over the sum of counts, "
            "the token mean: where the micro-batches' counts differ that is not what is optimized.",
    .source = "Megatron-LM core/pipeline_parallel/schedules.py, core/distributed/distributed_data_parallel.py",
    .denominator = "n",
    .scale = "1/M",
    .combine = LOSS_COMBINE_MEAN,
    .grad_scale = "1",
    .counts_at_end = false,
    .weight = "1/(n*M*D)",
    .logged = "1/N",
    .logs_counts = true,
    .logged_format = FORMAT_FP64,
};
