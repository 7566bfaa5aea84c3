/* deepspeed_pipe: DeepSpeed's pipeline engine. A micro-batch's mean loss is divided by the gradient accumulation
 * steps, which are the micro-batches; the gradients' all-reduce is divided by the data ranks. Printed is the sum
 * of the divided losses, averaged over the data ranks and broadcast down the pipeline as float32.
 *     weight of a token = 1/(n*M*D), loss printed = sum of S * 1/(n*M*D)
 * Source: DeepSpeed runtime/pipe/engine.py, runtime/engine.py. */
#include "model/loss_convention.h"

const struct loss_convention loss_convention_deepspeed_pipe = {
    .name = "deepspeed_pipe",
    .system = "DeepSpeed's pipeline engine",
    .what = "A micro-batch's mean loss is divided by the gradient accumulation steps, which are the micro- "
            "batches; the gradients' all-reduce is divided by the data ranks. Printed is the sum of the divided "
            "losses, averaged over the data ranks and broadcast down the pipeline as float32.",
    .source = "DeepSpeed runtime/pipe/engine.py, runtime/engine.py",
    .denominator = "n",
    .scale = "1/M",
    .combine = LOSS_COMBINE_MEAN,
    .grad_scale = "1",
    .counts_at_end = false,
    .weight = "1/(n*M*D)",
    .logged = "1/(n*M*D)",
    .logs_counts = false,
    .logged_format = FORMAT_FP32,
};
