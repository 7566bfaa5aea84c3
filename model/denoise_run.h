/* denoise_run: the workload `denoise`: the layers of a transformer again and again on their own latents, as a sampler does.
 *
 *   x [seq, dim] begins as N(0, 1) draws at (sequence, position, channel)
 *   x <- x + rmsnorm(layers(x)) / iterations            one Euler step, rmsnorm without a weight
 * Forward only: no embedding, no head, no gradients. A group of parallel.cp ranks shares each sequence; parallel.dp_replicate
 * groups have a sequence each. So a small error of one attention goes through all layers again in each iteration. */
#ifndef MODEL_DENOISE_RUN_H
#define MODEL_DENOISE_RUN_H

#include "model/train.h"

/* Caller owns the record: latents of every iteration; params.count 0. NULL and an error for the environment's reasons. */
struct record *denoise_run(const struct run_config *config, struct site_plan *plan, const struct train_options *options, struct error *error);
/* The same work on one rank. */
struct run_config denoise_single(const struct run_config *config);

#endif
