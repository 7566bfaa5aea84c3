/* torchtitan: torchtitan. The valid tokens of all accumulation steps and micro-batches are counted and added over
 * the data ranks before the first backward; each micro-batch's summed loss is divided by them inside the schedule.
 * FSDP's divisor is set to 1: the reduction adds up. Printed is the sum of the divided losses.
 *     weight of a token = 1/N, loss printed = sum of S * 1/N
 * Source: torchtitan trainer.py, components/loss.py, distributed/pipeline_parallel.py. */
#include "model/loss_convention.h"

const struct loss_convention loss_convention_torchtitan = {
    .name = "torchtitan",
    .system = "torchtitan",
    .what = "The valid tokens of all accumulation steps and micro-batches are counted and added over the data "
            "ranks before the first backward; each micro-batch's summed loss is divided by them inside the "
            "schedule. FSDP's divisor is set to 1: the reduction adds up. Printed is the sum of the divided "
            "losses.",
    .source = "torchtitan trainer.py, components/loss.py, distributed/pipeline_parallel.py",
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
