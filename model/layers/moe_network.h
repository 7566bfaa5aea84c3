/* moe_network: see moe_network.c. */
#ifndef MODEL_LAYERS_MOE_NETWORK_H
#define MODEL_LAYERS_MOE_NETWORK_H

#include "model/layers/layers.h"

enum { W1, W2, W3, B1, B2, B3 }; /* of a network; biases only where model.bias */

struct network_saved {
    struct tensor in;                       /* [rows, C] */
    struct tensor gate, up, activated;      /* [rows, F] */
    struct tensor d_out, d_gate, d_up;      /* from the backward on */
    struct tensor d_out_slice;              /* where tensor parallelism splits it: of d_out what the bias was added to (tensor_parallel.h) */
};

/* Uninitialised rows, of which there may be none. */
static inline struct tensor rows_alloc(const struct layer_context *context, int64_t rows, int64_t columns, struct arena *arena)
{
    enum format storage = context->ops->storage;
    size_t bytes = (size_t)(rows * columns) * format_storage_bytes(storage);
    return tensor_2d(arena_alloc(arena, bytes ? bytes : 1), storage, rows, columns);
}

/* is_cut: tensor parallelism splits it; last_bias: whether b2 is added. */
void network_forward(const struct layer_context *context, struct network_saved *saved, struct tensor out, struct tensor in,
                     const struct tensor *weights, bool is_cut, bool last_bias, struct arena *arena);
void network_backward_input(const struct layer_context *context, struct network_saved *saved, struct tensor d_in, struct tensor d_out,
                            const struct tensor *weights, struct arena *arena);
void network_backward_weight(const struct layer_context *context, const struct network_saved *saved, struct tensor *gradients, bool last_bias);
/* The same of an expert, whose rows are padded to a multiple of row_alignment. */
void expert_backward_weight(const struct layer_context *context, const struct network_saved *saved, struct tensor *gradients, bool last_bias);

#endif
