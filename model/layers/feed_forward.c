/* feed_forward: the gated feed-forward network with its norm before and its residual after.
 *
 *   n = rmsnorm(x)   g = n W1^T + b1   u = n W3^T + b3   a = silu(g) * u   y = x + (a W2^T + b2)
 *
 * x, y, n [T,C]; g, u, a [T,F]. W1 is the gate, W3 up, W2 down (SwiGLU: Shazeer 2020; names: Llama).
 *
 * Backward, with dy:
 *   da = dy W2   dg, du = swiglu'(da)   dn = dg W1 + du W3, one chain an element in this order
 *   dx = dy + rmsnorm'(dn)
 *   dW2 += dy^T a   dW1 += dg^T n   dW3 += du^T n   dw_norm += rmsnorm'(dn, x) */
#include "model/layers/layers.h"
#include "model/layers/linear.h"
#include "model/precision.h"

struct feed_forward_saved {
    struct tensor x, rstd, normed;     /* the norm's input, 1/rms, output */
    struct tensor gate, up, activated;
    struct tensor dy, dgate, dup, dnormed; /* from backward_input on */
};

void *feed_forward_forward(const struct layer_context *context, struct tensor y, struct tensor x,
                           const struct layer_weights *weights, struct arena *arena)
{
    const struct model_config *model = context->model;
    const struct ops *ops = context->ops;
    struct feed_forward_saved *saved = arena_zalloc(arena, sizeof *saved);

    saved->x = x;
    saved->rstd = layer_vector_alloc(context, layer_rows(context), arena);
    saved->normed = layer_matrix_alloc(context, model->dim, arena);
    enum format format = precision_activation(context->precision);
    ops->rmsnorm_forward(saved->normed, saved->rstd, x, weights->at[LAYER_FFN_NORM], model->norm_eps);
    tensor_round(saved->normed, format);

    saved->gate = layer_matrix_alloc(context, model->ffn, arena);
    saved->up = layer_matrix_alloc(context, model->ffn, arena);
    saved->activated = layer_matrix_alloc(context, model->ffn, arena);
    linear_forward(context, format, saved->gate, saved->normed, weights->at[LAYER_W1], layer_bias(context, weights, LAYER_B1));
    linear_forward(context, format, saved->up, saved->normed, weights->at[LAYER_W3], layer_bias(context, weights, LAYER_B3));
    ops->swiglu_forward(saved->activated, saved->gate, saved->up);
    tensor_round(saved->activated, format);

    linear_forward(context, format, y, saved->activated, weights->at[LAYER_W2], layer_bias(context, weights, LAYER_B2));
    ops->vector_add(y.data, x.data, y.data, (size_t)tensor_count(y));
    tensor_round(y, context->precision->residual);
    return saved;
}

void feed_forward_backward_input(const struct layer_context *context, struct tensor dx, struct tensor dy,
                                 const struct layer_weights *weights, void *block_saved, struct arena *arena)
{
    const struct model_config *model = context->model;
    const struct ops *ops = context->ops;
    struct feed_forward_saved *saved = block_saved;

    saved->dy = dy;
    saved->dgate = layer_matrix_alloc(context, model->ffn, arena);
    saved->dup = layer_matrix_alloc(context, model->ffn, arena);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor d_activated = layer_matrix_alloc(context, model->ffn, context->scratch);
    enum format format = precision_activation(context->precision);
    linear_backward_input(context, format, d_activated, dy, weights->at[LAYER_W2], false);
    ops->swiglu_backward(saved->dgate, saved->dup, d_activated, saved->gate, saved->up);
    tensor_round(saved->dgate, format);
    tensor_round(saved->dup, format);
    arena_release(context->scratch, mark);

    saved->dnormed = layer_matrix_alloc(context, model->dim, arena);
    linear_backward_input(context, format, saved->dnormed, saved->dgate, weights->at[LAYER_W1], false);
    linear_backward_input(context, format, saved->dnormed, saved->dup, weights->at[LAYER_W3], true);
    ops->rmsnorm_backward_input(dx, saved->dnormed, saved->x, weights->at[LAYER_FFN_NORM], saved->rstd);
    ops->vector_add(dx.data, dy.data, dx.data, (size_t)tensor_count(dx));
    tensor_round(dx, context->precision->residual);
}

void feed_forward_backward_weight(const struct layer_context *context, struct layer_weights *gradients,
                                  void *block_saved)
{
    const struct ops *ops = context->ops;
    const struct feed_forward_saved *saved = block_saved;

    linear_backward_weight(context, gradients->at[LAYER_W2], layer_bias(context, gradients, LAYER_B2), saved->dy,
                           saved->activated);
    linear_backward_weight(context, gradients->at[LAYER_W1], layer_bias(context, gradients, LAYER_B1), saved->dgate,
                           saved->normed);
    linear_backward_weight(context, gradients->at[LAYER_W3], layer_bias(context, gradients, LAYER_B3), saved->dup,
                           saved->normed);
    ops->rmsnorm_backward_weight(gradients->at[LAYER_FFN_NORM], saved->dnormed, saved->x, saved->rstd);
}

double feed_forward_forward_flops(const struct model_config *model, int64_t tokens)
{
    return 3.0 * linear_forward_flops(tokens, model->dim, model->ffn);
}
