/* moe_network: one network of a mixture on the rows that it is given, f(n) = (silu(n W1^T + b1) * (n W3^T + b3)) W2^T + b2.
 *
 * Rows of one network: n [rows, C], an inner width F; no rows: nothing is computed, and no gradient is added to. What the
 * recomputation drops (moe_activation: silu(..) * ..) is made again before the backward reads it. */
#include "model/layers/moe_network.h"

#include <string.h>

#include "model/choices.h"
#include "model/deviations.h"
#include "model/layers/linear.h"
#include "model/layers/moe_note.h"
#include "model/layers/tensor_parallel.h"
#include "model/precision.h"

static void activate(const struct layer_context *context, struct network_saved *saved)
{
    context->ops->swiglu_forward(saved->activated, saved->gate, saved->up);
    tensor_round(saved->activated, precision_activation(context->precision));
}

void network_forward(const struct layer_context *context, struct network_saved *saved, struct tensor out, struct tensor in,
                     const struct tensor *weights, bool is_cut, bool last_bias, struct arena *arena)
{
    struct tensor none = {.data = NULL};
    enum format format = precision_activation(context->precision);
    int64_t rows = in.shape[0], ffn = weights[W1].shape[0];
    saved->in = in;
    saved->gate = rows_alloc(context, rows, ffn, arena);
    saved->up = rows_alloc(context, rows, ffn, arena);
    if (rows == 0) return;
    struct arena_mark mark = arena_mark(context->scratch);
    saved->activated = rows_alloc(context, rows, ffn, layer_keeps(context, RECOMPUTE_MOE_ACTIVATION, arena));
    linear_forward(context, format, saved->gate, in, weights[W1], layer_bias(context, weights, B1));
    linear_forward(context, format, saved->up, in, weights[W3], layer_bias(context, weights, B3));
    activate(context, saved);
    struct tensor bias = last_bias ? layer_bias(context, weights, B2) : none;
    if (is_cut) row_parallel_forward(context, format, out, saved->activated, weights[W2], bias);
    else linear_forward(context, format, out, saved->activated, weights[W2], bias);
    arena_release(context->scratch, mark);
}

void network_backward_input(const struct layer_context *context, struct network_saved *saved, struct tensor d_in,
                            struct tensor d_out, const struct tensor *weights, struct arena *arena)
{
    enum format format = precision_activation(context->precision);
    int64_t rows = saved->in.shape[0], ffn = weights[W1].shape[0];
    saved->d_out = d_out;
    saved->d_gate = rows_alloc(context, rows, ffn, arena);
    saved->d_up = rows_alloc(context, rows, ffn, arena);
    if (rows == 0) return;
    if (context->recompute & RECOMPUTE_MOE_ACTIVATION) {
        saved->activated = rows_alloc(context, rows, ffn, arena);
        activate(context, saved);
    }
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor d_activated = rows_alloc(context, rows, ffn, context->scratch);
    linear_backward_input(context, format, d_activated, d_out, weights[W2], false);
    context->ops->swiglu_backward(saved->d_gate, saved->d_up, d_activated, saved->gate, saved->up);
    tensor_round(saved->d_gate, format);
    tensor_round(saved->d_up, format);
    arena_release(context->scratch, mark);
    linear_backward_input(context, format, d_in, saved->d_gate, weights[W1], false);
    linear_backward_input(context, format, d_in, saved->d_up, weights[W3], true);
}

void network_backward_weight(const struct layer_context *context, const struct network_saved *saved, struct tensor *gradients, bool last_bias)
{
    struct tensor none = {.data = NULL};
    if (saved->in.shape[0] == 0) return;
    struct tensor bias = last_bias ? layer_bias(context, gradients, B2) : none;
    if (saved->d_out_slice.data) row_parallel_backward_weight(context, gradients[W2], bias, saved->d_out, saved->d_out_slice, saved->activated);
    else linear_backward_weight(context, gradients[W2], bias, saved->d_out, saved->activated);
    linear_backward_weight(context, gradients[W1], layer_bias(context, gradients, B1), saved->d_gate, saved->in);
    linear_backward_weight(context, gradients[W3], layer_bias(context, gradients, B3), saved->d_up, saved->in);
}

/* A product over rows reads them in multiples of row_alignment: behind an expert's own come rows of zeros, which add
 * nothing to a gradient. clean: they are zeroed; else they are what memory held. */
static struct tensor padded_rows(const struct layer_context *context, struct tensor t, int64_t rows, bool clean)
{
    struct tensor padded = rows_alloc(context, rows, t.shape[1], context->scratch);
    size_t own = (size_t)tensor_bytes(t), all = (size_t)tensor_bytes(padded);
    memcpy(padded.data, t.data, own);
    if (clean) memset((char *)padded.data + own, 0, all - own);
    else memory_poison((char *)padded.data + own, all - own);
    return padded;
}

void expert_backward_weight(const struct layer_context *context, const struct network_saved *saved, struct tensor *gradients, bool last_bias)
{
    int64_t rows = saved->in.shape[0], unit = context->model->moe.row_alignment, aligned = unit > 1 ? (rows + unit - 1) / unit * unit : rows;
    struct network_saved padded = *saved;
    struct arena_mark mark = arena_mark(context->scratch);
    if (aligned > rows) {
        bool clean = memory_is_zeroed(context->plan, &site_moe_padding_rows, context->where);
        struct tensor *all[] = {&padded.in, &padded.gate, &padded.up, &padded.activated, &padded.d_out, &padded.d_gate, &padded.d_up};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) *all[i] = padded_rows(context, *all[i], aligned, clean);
        moe_note_padding(context, tensor_rows(padded.in, rows, aligned - rows));
    }
    network_backward_weight(context, &padded, gradients, last_bias);
    arena_release(context->scratch, mark);
}
