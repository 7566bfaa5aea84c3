/* nanotron: nanotron. A micro-batch's loss is a masked mean, divided by the micro-batches; gradients are averaged
 * over the data ranks. Printed is the sum of the divided losses, averaged over the data ranks.
 *     weight of a token = 1/(n*M*D), loss printed = sum of S * 1/(n*M*D)
 * Source: nanotron pipeline_parallel/engine.py, trainer.py, models/llama.py (masked_mean). */
#include "model/loss_convention.h"

const struct loss_convention loss_convention_nanotron = {
    .name = "nanotron",
    .system = "nanotron",
    .what = "A micro-batch's loss is a masked mean, divided by the micro-batches; gradients are averaged over the "
            "data ranks. Printed is the sum of the divided losses, averaged over the data ranks.",
    .source = "nanotron pipeline_parallel/engine.py, trainer.py, models/llama.py (masked_mean)",
    .denominator = "n",
    .scale = "1/M",
    .combine = LOSS_COMBINE_MEAN,
    .grad_scale = "1",
    .counts_at_end = false,
    .weight = "1/(n*M*D)",
    .logged = "1/(n*M*D)",
    .logs_counts = false,
    .logged_format = FORMAT_FP64,
};
