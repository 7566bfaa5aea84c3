/* sequence_parallel: what lies between tensor-parallel parts, norms, dropout, residual stream, split along the sequence
 * (Megatron-LM: Korthikanti et al. 2022, section 4.2.2).
 *
 *   slice     member i of tp has positions i S/tp .. (i+1) S/tp - 1 of every sequence: [batch, S/tp, C], B*S/tp rows
 *   gather    slices -> [batch, S, C], in the order that the layer has without it: what arrives, [tp, batch, S/tp, C], is
 *             put in order by sequence. Before a column-parallel matrix (and the head's); again for that matrix' weight
 *             gradient, as Megatron-LM does, so that only the slice is kept
 *   scatter   the sum over tp of [batch, S, C], of which each member gets its slice. Behind a row-parallel matrix and the
 *             embedding; its bias is added to the slice
 *   backward  of a gather a scatter of the parts' sum, of a scatter a gather; the gathered gradient is kept from the input's
 *             backward to the weights'
 *   grad      parameters that are whole on every tp rank (norms, row-parallel biases, latent attention's down projections,
 *             adapters, routers) saw a slice: their gradients are summed over tp at the end of a step (sequence_grads.c)
 * Sums in the order of the reduce-scatter's algorithm. Without sequence parallelism a gather gives back what it was given. */
#ifndef MODEL_LAYERS_SEQUENCE_PARALLEL_H
#define MODEL_LAYERS_SEQUENCE_PARALLEL_H

#include "model/layers/layers.h"

/* [T, columns] from slices [T / tp, columns], from `arena`. */
struct tensor sequence_gather(const struct layer_context *context, const struct site *site, struct tensor slice, enum format wire, struct arena *arena);
/* slice = this rank's rows of the sum over tp of whole [T, columns], not yet rounded. */
void sequence_reduce_scatter(const struct layer_context *context, const struct site *site, struct tensor slice, struct tensor whole, enum format wire);
/* The gradient of a gather's slice from this rank's part of the whole's, rounded; from `arena`. */
struct tensor sequence_gather_backward(const struct layer_context *context, struct tensor dwhole, enum format format, struct arena *arena);

/* The context of a block that computes with its slice alone: seq and rows are the slice's. The same where nothing is split. */
static inline struct layer_context sequence_slice(const struct layer_context *context)
{
    struct layer_context slice = *context;
    if (!context->sequence_split) return slice;
    slice.seq = layer_slice_seq(context);
    slice.sequence_split = false;
    slice.is_slice = true;
    return slice;
}

/* The shape of what a slice would be gathered into; no data. */
static inline struct tensor layer_whole_shape(const struct layer_context *context, struct tensor slice)
{
    return tensor_2d(NULL, slice.storage, layer_rows(context), slice.shape[1]);
}

/* Of a division that leaves the last position out: zeros there, in a slice or in the whole. */
void sequence_drop_last(const struct layer_context *context, struct tensor rows);

/* Where row `row` of a slice stands among the T rows. */
static inline int64_t sequence_row(const struct layer_context *context, int64_t row)
{
    int64_t seq = layer_slice_seq(context);
    return row / seq * context->seq + layer_slice_first(context) + row % seq;
}

#endif
