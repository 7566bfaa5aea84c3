/* tensor_parallel: the two sums of a matrix pair that T ranks share (Megatron-LM: Shoeybi et al. 2019, section 3).
 *
 *   column-parallel   W [out, in] by rows: each rank makes its part of the outputs from the whole input; the
 *                     gradient of the input is the sum of what every rank gives
 *   row-parallel      W [out, in] by columns: each rank's part of the inputs gives a part of every output, and the output
 *                     is the sum; the bias is added once, behind it. Each rank's gradient of its part of the input
 *                     needs no sum
 * So between a column-parallel and a row-parallel matrix nothing is exchanged. Sums are all-reduces over tp, in the format
 * of the activations; with one rank nothing is called, and the bits are those of the plain layer. With sequence parallelism
 * the same sums are reduce-scatters (sequence_parallel.h). */
#ifndef MODEL_LAYERS_TENSOR_PARALLEL_H
#define MODEL_LAYERS_TENSOR_PARALLEL_H

#include "model/layers/layers.h"

/* The unit that a call outside layers is of: the embedding has one sum and one gather, all else is the head's. */
int tensor_parallel_unit(const struct layer_context *context, const struct site *site);
/* In place over the tp group; nothing where there is none. */
void tensor_parallel_sum(const struct layer_context *context, const struct site *site, struct tensor values, enum format wire);
/* y = x W^T summed over tp, + bias. With sequence parallelism y is a slice, and the bias is added to that. */
void row_parallel_forward(const struct layer_context *context, enum format format, struct tensor y, struct tensor x,
                          struct tensor weight, struct tensor bias);
/* dy: gathered, dy_slice: the slice that the bias was added to; where nothing is split, both are the same. */
void row_parallel_backward_weight(const struct layer_context *context, struct tensor dweight, struct tensor dbias, struct tensor dy,
                                  struct tensor dy_slice, struct tensor x);
/* The input's gradient, once every column-parallel matrix behind it has added its part: dx, or, with sequence parallelism, the
 * slice of the sum, from `arena`. */
struct tensor column_parallel_backward(const struct layer_context *context, enum format format, struct tensor dx, struct arena *arena);

#endif
