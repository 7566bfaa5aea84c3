/* head: from the last layer's output to one loss a token.
 *
 *   n = rmsnorm(x)   z = n W^T   loss[t] = logsumexp(z[t,:]) - z[t, target]       n [T,C], z [T,V]
 *
 * Backward, with the cotangent w[t] of each loss:
 *   dz[t,:] = w[t] (softmax(z[t,:]) - onehot(target))   dn = dz W   dx = rmsnorm'(dn)
 *   dW += dz^T n   dw_norm += rmsnorm'(dn, x)
 *
 * The logits are by far the largest tensor here: they are kept once, and dz takes their place. So
 * head_backward_input runs at most once after each forward. */
#include "model/layers/layers.h"
#include "model/layers/linear.h"
#include "model/precision.h"

#include "sim/assertion.h"

struct head_saved {
    struct tensor x, rstd, normed;
    struct tensor logits, lse;      /* dz is in `logits` from backward_input on */
    struct tensor dnormed;          /* without data before backward_input */
};

static const struct tensor no_bias = { .data = NULL };

struct head_saved *head_forward(const struct layer_context *context, struct tensor token_loss, struct tensor x,
                                const int32_t *targets, const struct head_weights *weights, struct arena *arena)
{
    const struct model_config *model = context->model;
    const struct ops *ops = context->ops;
    int64_t rows = layer_rows(context);
    ASSERT(x.dims == 2 && x.shape[0] == rows && x.shape[1] == model->dim && x.storage == ops->storage);
    ASSERT(token_loss.dims == 1 && token_loss.shape[0] == rows && token_loss.storage == ops->storage);

    struct head_saved *saved = arena_zalloc(arena, sizeof *saved);
    saved->x = x;
    saved->rstd = layer_vector_alloc(context, rows, arena);
    saved->normed = layer_matrix_alloc(context, model->dim, arena);
    ops->rmsnorm_forward(saved->normed, saved->rstd, x, weights->norm, model->norm_eps);
    tensor_round(saved->normed, precision_activation(context->precision));
    saved->logits = layer_matrix_alloc(context, model->vocab, arena);
    linear_forward(context, context->precision->logits, saved->logits, saved->normed, weights->output, no_bias);
    saved->lse = layer_vector_alloc(context, rows, arena);
    ops->cross_entropy_forward(token_loss, saved->lse, saved->logits, targets);
    return saved;
}

void head_backward_input(const struct layer_context *context, struct tensor dx, struct tensor weight,
                         const int32_t *targets, const struct head_weights *weights, struct head_saved *saved,
                         struct arena *arena)
{
    const struct ops *ops = context->ops;
    ASSERT_MESSAGE(saved->dnormed.data == NULL, "the logits are gone after one head_backward_input");
    ASSERT(weight.dims == 1 && weight.shape[0] == layer_rows(context) && weight.storage == ops->storage);

    ops->cross_entropy_backward(saved->logits, saved->logits, saved->lse, targets, weight);
    tensor_round(saved->logits, context->precision->logits);
    saved->dnormed = layer_matrix_alloc(context, context->model->dim, arena);
    linear_backward_input(context, precision_activation(context->precision), saved->dnormed, saved->logits, weights->output, false);
    ops->rmsnorm_backward_input(dx, saved->dnormed, saved->x, weights->norm, saved->rstd);
    tensor_round(dx, context->precision->residual);
}

void head_backward_weight(const struct layer_context *context, struct head_weights *gradients,
                          struct head_saved *saved)
{
    const struct ops *ops = context->ops;
    ASSERT_MESSAGE(saved->dnormed.data != NULL, "head_backward_weight before head_backward_input");

    linear_backward_weight(context, gradients->output, no_bias, saved->logits, saved->normed);
    ops->rmsnorm_backward_weight(gradients->norm, saved->dnormed, saved->x, saved->rstd);
}
