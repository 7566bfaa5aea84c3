/* pytorch_mean: PyTorch pipelining with a mean loss and scale_grads. Backward starts from each micro-batch's mean
 * loss with seed 1; FSDP averages over the data ranks; at the end of the schedule's step every gradient is divided
 * by the micro-batches. The schedule hands back one loss a micro-batch; what is printed here is the mean of that
 * list, averaged over the data ranks.
 *     weight of a token = 1/(n*M*D), loss printed = sum of S * 1/(n*M*D)
 * Source: PyTorch torch/distributed/pipelining/schedules.py and stage.py (scale_grads). */
#include "model/loss_convention.h"

const struct loss_convention loss_convention_pytorch_mean = {
    .name = "pytorch_mean",
    .system = "PyTorch pipelining with a mean loss and scale_grads",
    .what = "Backward starts from each micro-batch's mean loss with seed 1; FSDP averages over the data ranks; at "
            "the end of the schedule's step every gradient is divided by the micro-batches. The schedule hands "
            "back one loss a micro-batch; what is printed here is the mean of that list, averaged over the data "
            "ranks.",
    .source = "PyTorch torch/distributed/pipelining/schedules.py and stage.py (scale_grads)",
    .denominator = "n",
    .scale = "1",
    .combine = LOSS_COMBINE_MEAN,
    .grad_scale = "1/M",
    .counts_at_end = false,
    .weight = "1/(n*M*D)",
    .logged = "1/(n*M*D)",
    .logs_counts = false,
    .logged_format = FORMAT_FP64,
};
