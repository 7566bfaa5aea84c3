/* linear: see linear.c. */
#ifndef MODEL_LAYERS_LINEAR_H
#define MODEL_LAYERS_LINEAR_H

#include "model/layers/layers.h"

/* bias.data NULL: none. Results are rounded to `result`; the operands first to the compute format where that has
 * eight bits. */
void linear_forward(const struct layer_context *context, enum format result, struct tensor y, struct tensor x,
                    struct tensor weight, struct tensor bias);
/* accumulate: dx += instead of dx = (rounded after each addition). */
void linear_backward_input(const struct layer_context *context, enum format result, struct tensor dx, struct tensor dy,
                           struct tensor weight, bool accumulate);
/* dweight, dbias +=, not rounded: the accumulator's format is its owner's. */
void linear_backward_weight(const struct layer_context *context, struct tensor dweight, struct tensor dbias,
                            struct tensor dy, struct tensor x);
double linear_forward_flops(int64_t rows, int64_t in, int64_t out);

#endif
