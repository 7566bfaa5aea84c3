/* feed_forward: the gated feed-forward network with its norm before and its residual after.
 *
 *   n = rmsnorm(x)   g = n W1^T + b1   u = n W3^T + b3   a = silu(g) * u   y = x + (a W2^T + b2)
 *
 * x, y, n [T,C]; g, u, a [T,F]. W1 is the gate, W3 up, W2 down (SwiGLU: Shazeer 2020; names: Llama).
 *
 * With dropout (dropout.c) y = x + m (a W2^T + b2), and the matrices' gradients come from m dy in the place of dy.
 *
 * With sequence parallelism x, y, n and their gradients are slices: n is gathered before W1 and W3, a W2^T reduced and
 * scattered (model/layers/sequence_parallel.h).
 *
 * Backward, with dy:
 *   da = dy W2   dg, du = swiglu'(da)   dn = dg W1 + du W3, one chain an element in this order
 *   dx = dy + rmsnorm'(dn)
 *   dW2 += dy^T a   dW1 += dg^T n   dW3 += du^T n   dw_norm += rmsnorm'(dn, x) */
#include "model/layers/dropout.h"
#include "model/layers/layers.h"
#include "model/layers/linear.h"
#include "model/layers/sequence_parallel.h"
#include "model/layers/tensor_parallel.h"
#include "model/params.h"
#include "model/precision.h"

enum { NORM, W1, W2, W3, B1, B2, B3 }; /* biases only where model.bias */

int feed_forward_params(const struct model_config *model, int layer, struct param_info *ret)
{
    if (!ret) return model->bias ? B3 + 1 : W3 + 1;
    ret[NORM] = param_norm(layer, "ffn_norm", model->dim);
    ret[W1] = param_matrix(layer, "feed_forward.w1", model->ffn, model->dim);
    ret[W2] = param_matrix(layer, "feed_forward.w2", model->dim, model->ffn);
    ret[W2].writes_residual = true;
    ret[W2].cut = CUT_COLUMNS;
    ret[W3] = param_matrix(layer, "feed_forward.w3", model->ffn, model->dim);
    ret[W1].cut = ret[W3].cut = CUT_ROWS;
    for (int i = W1; model->bias && i <= W3; i++) ret[i - W1 + B1] = param_bias(&ret[i], i);
    return feed_forward_params(model, layer, NULL);
}

struct feed_forward_saved {
    struct tensor x, rstd, normed;     /* the norm's input, 1/rms, output */
    struct tensor gate, up, activated;
    int dropout;                       /* the mask's draw */
    struct tensor dy, dgate, dup, dnormed; /* from backward_input on */
    struct tensor d_out;               /* dy, gathered */
};

void *feed_forward_forward(const struct layer_context *context, struct tensor y, struct tensor x,
                           const struct tensor *weights, struct arena *arena)
{
    const struct model_config *model = context->model;
    const struct ops *ops = context->ops;
    struct feed_forward_saved *saved = arena_zalloc(arena, sizeof *saved);

    saved->x = x;
    saved->rstd = layer_vector_alloc(context, layer_slice_rows(context), arena);
    saved->normed = layer_slice_alloc(context, model->dim, arena);
    enum format format = precision_activation(context->precision);
    ops->rmsnorm_forward(saved->normed, saved->rstd, x, weights[NORM], model->norm_eps);
    tensor_round(saved->normed, format);

    int64_t ffn = weights[W1].shape[0];
    saved->gate = layer_matrix_alloc(context, ffn, arena);
    saved->up = layer_matrix_alloc(context, ffn, arena);
    saved->activated = layer_matrix_alloc(context, ffn, arena);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor in = sequence_gather(context, &site_sp_gather, saved->normed, format, context->scratch);
    linear_forward(context, format, saved->gate, in, weights[W1], layer_bias(context, weights, B1));
    linear_forward(context, format, saved->up, in, weights[W3], layer_bias(context, weights, B3));
    arena_release(context->scratch, mark);
    ops->swiglu_forward(saved->activated, saved->gate, saved->up);
    tensor_round(saved->activated, format);

    row_parallel_forward(context, format, y, saved->activated, weights[W2], layer_bias(context, weights, B2));
    saved->dropout = dropout_forward(context, DROPOUT_FEED_FORWARD, y);
    ops->vector_add(y.data, x.data, y.data, (size_t)tensor_count(y));
    tensor_round(y, context->precision->residual);
    return saved;
}

void feed_forward_backward_input(const struct layer_context *context, struct tensor dx, struct tensor dy,
                                 const struct tensor *weights, void *block_saved, struct arena *arena)
{
    const struct model_config *model = context->model;
    const struct ops *ops = context->ops;
    struct feed_forward_saved *saved = block_saved;

    saved->dy = dropout_backward(context, DROPOUT_FEED_FORWARD, saved->dropout, dy, arena);
    saved->d_out = sequence_gather(context, &site_sp_output_grad_gather, saved->dy, context->precision->residual, arena);
    int64_t ffn = weights[W1].shape[0];
    saved->dgate = layer_matrix_alloc(context, ffn, arena);
    saved->dup = layer_matrix_alloc(context, ffn, arena);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor d_activated = layer_matrix_alloc(context, ffn, context->scratch);
    enum format format = precision_activation(context->precision);
    linear_backward_input(context, format, d_activated, saved->d_out, weights[W2], false);
    ops->swiglu_backward(saved->dgate, saved->dup, d_activated, saved->gate, saved->up);
    tensor_round(saved->dgate, format);
    tensor_round(saved->dup, format);
    arena_release(context->scratch, mark);

    saved->dnormed = layer_matrix_alloc(context, model->dim, arena);
    linear_backward_input(context, format, saved->dnormed, saved->dgate, weights[W1], false);
    linear_backward_input(context, format, saved->dnormed, saved->dup, weights[W3], true);
    saved->dnormed = column_parallel_backward(context, format, saved->dnormed, arena);
    ops->rmsnorm_backward_input(dx, saved->dnormed, saved->x, weights[NORM], saved->rstd);
    ops->vector_add(dx.data, dy.data, dx.data, (size_t)tensor_count(dx));
    tensor_round(dx, context->precision->residual);
}

void feed_forward_backward_weight(const struct layer_context *context, struct tensor *gradients,
                                  void *block_saved)
{
    const struct ops *ops = context->ops;
    const struct feed_forward_saved *saved = block_saved;

    row_parallel_backward_weight(context, gradients[W2], layer_bias(context, gradients, B2), saved->d_out, saved->dy, saved->activated);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor in = sequence_gather(context, &site_sp_gather_again, saved->normed, precision_activation(context->precision), context->scratch);
    linear_backward_weight(context, gradients[W1], layer_bias(context, gradients, B1), saved->dgate, in);
    linear_backward_weight(context, gradients[W3], layer_bias(context, gradients, B3), saved->dup, in);
    arena_release(context->scratch, mark);
    ops->rmsnorm_backward_weight(gradients[NORM], saved->dnormed, saved->x, saved->rstd);
}

double feed_forward_forward_flops(const struct model_config *model, int64_t tokens)
{
    return 3.0 * linear_forward_flops(tokens, model->dim, model->ffn);
}
