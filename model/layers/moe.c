/* moe: a mixture of experts with its norm before and its residual after.
 *
 *   n = rmsnorm(x)   z = n Wr^T   (chosen, w) = router(z)                     model/layers/router.c
 *   r[t] = sum over the experts e chosen by t, ascending, of w[t,e] f_e(n[t])   f(n) = (silu(n W1^T + b1) * (n W3^T + b3)) W2^T + b2
 *   y = x + (r + f_shared(n))
 *
 * x, y, n, r [T,C]; z [T,E]; W1, W3 [F,C], W2 [C,F], an expert's F = expert_ffn, the shared one's = shared_ffn (0: none).
 * The rows of an expert are gathered into one matrix (an expert may have none; a pair without room has no row); Wr has no bias.
 *
 * With dropout (dropout.c) y = x + m (r + f_shared(n)), and m dy stands below in the place of dy but for dx's own term.
 * What the recomputation drops (moe_rmsnorm: n, moe_permute: the gathered rows, moe_activation: silu(..) * ..) is made again
 * from what is kept before the backward reads it.
 *
 * Backward, with dy: do[i] = w dy[token i] for each row i, dw[i] = <f(n)[i], dy[token i]>, then through each expert;
 *   dn = shared, then experts ascending, then dz Wr, each added to the one before;   dx = dy + rmsnorm'(dn).
 *
 * Tensor parallelism splits the shared expert (w1, w3 by outputs, w2 by inputs); the others are whole on every rank, which
 * routes and computes the same tokens as its neighbours.
 * With sequence parallelism x, y, n, r and their gradients are slices: each tp rank routes the tokens of its own and computes their
 * experts; the shared expert's input is gathered, its output reduced and scattered (model/layers/sequence_parallel.h).
 * Sparse experts: Shazeer et al. 2017; a shared expert: DeepSeekMoE (Dai et al. 2024); no drop: MegaBlocks (Gale et al. 2022). */
#include <stdio.h>
#include <string.h>

#include "model/deviations.h"
#include "model/layers/dispatch.h"
#include "model/layers/dropout.h"
#include "model/layers/layers.h"
#include "model/layers/linear.h"
#include "model/layers/moe_network.h"
#include "model/layers/moe_note.h"
#include "model/layers/router.h"
#include "model/layers/sequence_parallel.h"
#include "model/layers/tensor_parallel.h"
#include "model/params.h"
#include "model/precision.h"
#include "sim/assertion.h"

enum { NORM, ROUTER, FIRST_NETWORK };

static int network_params(const struct model_config *model)
{
    return model->bias ? B3 + 1 : W3 + 1;
}

/* Where the shared expert's parameters begin, and those of expert e. */
static int expert_at(const struct model_config *model, int e)
{
    return FIRST_NETWORK + ((model->moe.shared_ffn > 0) + e) * network_params(model);
}

static void describe_network(const struct model_config *model, int layer, const char *name, int64_t ffn, int at, struct param_info *ret)
{
    char path[64];
    for (int i = W1; i <= W3; i++) {
        snprintf(path, sizeof path, "moe.%s.w%d", name, i + 1);
        ret[at + i] = i == W2 ? param_matrix(layer, path, model->dim, ffn) : param_matrix(layer, path, ffn, model->dim);
        ret[at + i].writes_residual = i == W2;
    }
    for (int i = W1; model->bias && i <= W3; i++) ret[at + B1 + i] = param_bias(&ret[at + i], at + i);
}

int moe_params(const struct model_config *model, int layer, struct param_info *ret)
{
    char name[32];
    if (!ret) return expert_at(model, model->moe.experts);
    ret[NORM] = param_norm(layer, "ffn_norm", model->dim);
    ret[ROUTER] = param_matrix(layer, "moe.router", model->moe.experts, model->dim);
    ret[ROUTER].is_router = true;
    if (model->moe.shared_ffn > 0) {
        describe_network(model, layer, "shared_expert", model->moe.shared_ffn, FIRST_NETWORK, ret);
        ret[FIRST_NETWORK + W1].cut = ret[FIRST_NETWORK + W3].cut = CUT_ROWS;
        ret[FIRST_NETWORK + W2].cut = CUT_COLUMNS;
        if (model->bias) ret[FIRST_NETWORK + B1].cut = ret[FIRST_NETWORK + B3].cut = CUT_ROWS;
    }
    for (int e = 0; e < model->moe.experts; e++) {
        snprintf(name, sizeof name, "experts.%d", e);
        describe_network(model, layer, name, model->moe.expert_ffn, expert_at(model, e), ret);
        for (int i = expert_at(model, e); i < expert_at(model, e + 1); i++) {
            ret[i].is_expert = true;
            ret[i].expert = e;
        }
    }
    return moe_params(model, layer, NULL);
}

/* ---- the block ---- */

struct moe_saved {
    struct tensor x, rstd, normed;
    struct routing routing;
    struct dispatch dispatch;
    struct network_saved shared, *experts;       /* [experts of this rank] */
    int dropout;                                 /* the mask's draw */
    bool bias_apart;                             /* experts' output biases are added behind the weights */
    struct tensor d_routed;                      /* where they are: dy */
    struct tensor dnormed, d_logits;             /* from backward_input on */
};

/* The router's product is never taken in the compute format. */
static struct layer_context router_context(const struct layer_context *context, struct precision *ret_precision)
{
    struct layer_context own = *context;
    *ret_precision = *context->precision;
    ret_precision->compute = context->ops->storage;
    own.precision = ret_precision;
    return own;
}

static void route(const struct layer_context *context, struct moe_saved *saved, const struct tensor *weights, struct arena *arena)
{
    struct precision precision;
    struct layer_context own = router_context(context, &precision);
    struct tensor logits = layer_matrix_alloc(context, context->model->moe.experts, arena);
    linear_forward(&own, context->ops->storage, logits, saved->normed, weights[ROUTER], (struct tensor){.data = NULL});
    router_forward(context, &saved->routing, logits, arena);
}

/* What an expert's bias adds to its tokens where no weight multiplies it; its gradient. All experts are here. */
static void add_biases(const struct layer_context *context, const struct moe_saved *saved, struct tensor routed, const struct tensor *weights)
{
    const struct routing *routing = &saved->routing;
    int64_t dim = context->model->dim;
    for (int e = 0; e < context->model->moe.experts && saved->bias_apart; e++) {
        struct tensor bias = weights[expert_at(context->model, e) + B2];
        for (int64_t i = routing->bounds[e]; i < routing->bounds[e + 1]; i++) {
            for (int64_t c = 0; c < dim; c++) {
                int64_t at = routing->back_token[i] * dim + c;
                router_set(routed, at, router_get(routed, at) + router_get(bias, c));
            }
        }
    }
}

static void add_biases_backward(const struct layer_context *context, const struct moe_saved *saved, struct tensor *gradients)
{
    const struct routing *routing = &saved->routing;
    int64_t dim = context->model->dim;
    for (int e = 0; e < context->model->moe.experts && saved->bias_apart; e++) {
        struct tensor bias = gradients[expert_at(context->model, e) + B2];
        for (int64_t i = routing->bounds[e]; i < routing->bounds[e + 1]; i++) {
            for (int64_t c = 0; c < dim; c++)
                router_set(bias, c, router_get(bias, c) + router_get(saved->d_routed, routing->back_token[i] * dim + c));
        }
    }
}

static void norm(const struct layer_context *context, struct moe_saved *saved, const struct tensor *weights, struct arena *arena)
{
    saved->normed = layer_slice_alloc(context, context->model->dim, arena);
    context->ops->rmsnorm_forward(saved->normed, saved->rstd, saved->x, weights[NORM], context->model->norm_eps);
    tensor_round(saved->normed, precision_activation(context->precision));
}

/* Before the backward: what the forward did not keep. */
static void make_again(const struct layer_context *context, struct moe_saved *saved, const struct tensor *weights, struct arena *arena)
{
    struct dispatch *d = &saved->dispatch;
    if (context->recompute & RECOMPUTE_MOE_RMSNORM) norm(context, saved, weights, arena);
    if (context->recompute & RECOMPUTE_MOE_PERMUTE) dispatch_again(context, d, saved->normed, arena);
    dispatch_share_again(d);
    if (context->model->moe.shared_ffn > 0) saved->shared.in = context->sequence_split ? layer_whole_shape(context, saved->normed) : saved->normed;
    for (int e = 0; e < d->experts; e++) saved->experts[e].in = dispatch_rows_of(d, d->work.in, e);
}

/* The experts' output biases, of those of this rank. */
static const struct tensor *const *biases_of(const struct layer_context *context, const struct dispatch *d, const struct tensor *weights)
{
    const struct tensor **biases = arena_alloc(context->scratch, (size_t)d->experts * sizeof *biases);
    for (int e = 0; e < d->experts && context->model->bias; e++) biases[e] = &weights[expert_at(context->model, d->first + e) + B2];
    return context->model->bias ? biases : NULL;
}

static void run_experts(const struct layer_context *context, struct moe_saved *saved, struct tensor routed,
                        const struct tensor *weights, struct arena *arena)
{
    const struct model_config *model = context->model;
    struct dispatch *d = &saved->dispatch;
    dispatch_forward(context, d, &saved->routing, saved->normed, arena);
    dispatch_share(context, d, arena);
    saved->experts = arena_zalloc(arena, (size_t)d->experts * sizeof *saved->experts);
    saved->bias_apart = model->bias && !context->ep && !decision_site(context->plan, &site_moe_expert_bias, context->where, true, true);
    for (int e = 0; e < d->experts; e++) {
        network_forward(context, &saved->experts[e], dispatch_rows_of(d, d->work.out, e), dispatch_rows_of(d, d->work.in, e),
                        weights + expert_at(model, d->first + e), false, !saved->bias_apart && !dispatch_is_shared(context), arena);
    }
    dispatch_complete(context, d, biases_of(context, d, weights));
    moe_note_rows(context, DISPATCH_READ, d->in);
    moe_note_rows(context, DISPATCH_GAVE, d->out);
    dispatch_combine(context, d, routed, arena);
    add_biases(context, saved, routed, weights);
    tensor_round(routed, precision_activation(context->precision));
    layer_tensor(context, &site_moe_combine, 0, routed);
    moe_note_forward(context, &saved->routing, d, saved->normed, routed);
}

/* The shared expert in the sum over ranks that each have it: so often does it count. In a healthy run once. */
static void count_shared(const struct layer_context *context, const struct dispatch *d, struct tensor shared)
{
    if (d->kind != &dispatcher_replicated || decision_site(context->plan, &site_ep_shared_once, context->where, true, true)) return;
    context->ops->vector_scale(shared.data, context->ep->group->size, (size_t)tensor_count(shared));
}

void *moe_forward(const struct layer_context *context, struct tensor y, struct tensor x, const struct tensor *weights,
                  struct arena *arena)
{
    const struct ops *ops = context->ops;
    enum format format = precision_activation(context->precision);
    struct moe_saved *saved = arena_zalloc(arena, sizeof *saved);
    size_t count = (size_t)tensor_count(y);

    saved->x = x;
    struct layer_context own = sequence_slice(context); /* of the tokens that are here */
    saved->rstd = layer_vector_alloc(&own, layer_rows(&own), arena);
    struct arena_mark mark = arena_mark(context->scratch);
    norm(context, saved, weights, layer_keeps(context, RECOMPUTE_MOE_RMSNORM, arena));
    route(&own, saved, weights, arena);
    struct tensor routed = layer_matrix_alloc(&own, context->model->dim, context->scratch);
    run_experts(&own, saved, routed, weights, arena);
    if (context->model->moe.shared_ffn > 0) {
        struct tensor in = sequence_gather(context, &site_sp_gather, saved->normed, format, context->scratch);
        network_forward(context, &saved->shared, y, in, weights + FIRST_NETWORK, true, true, arena);
        moe_note_shared(context, y, false);
        count_shared(context, &saved->dispatch, y);
        ops->vector_add(routed.data, routed.data, y.data, count);
        tensor_round(routed, format);
        moe_note_shared(context, routed, true);
    }
    saved->dropout = dropout_forward(context, DROPOUT_FEED_FORWARD, routed);
    ops->vector_add(y.data, x.data, routed.data, count);
    tensor_round(y, context->precision->residual);
    arena_release(context->scratch, mark);
    return saved;
}

/* From dy to the gradient of each expert's rows, added up by token; and that of the weights. */
static void backward_experts(const struct layer_context *context, struct moe_saved *saved, struct tensor dy, struct tensor d_weight,
                             const struct tensor *weights, struct arena *arena)
{
    const struct model_config *model = context->model;
    struct dispatch *d = &saved->dispatch;
    struct tensor d_out = rows_alloc(context, d->rows, model->dim, arena);
    struct tensor d_rows = rows_alloc(context, d->work.rows, model->dim, context->scratch);
    if (saved->bias_apart) saved->d_routed = dy;
    dispatch_combine_backward(context, d, d_out, d_weight, dy, arena);
    moe_note_gate(context, d_weight, true);
    tensor_site(context->plan, &site_moe_gate_gradient, context->where, d_weight);
    moe_note_gate(context, d_weight, false);
    moe_note_rows(context, DISPATCH_GRAD_READ, d_out);
    d_out = dispatch_share_backward(context, d, d_out, arena);
    for (int e = 0; e < d->experts; e++) {
        network_backward_input(context, &saved->experts[e], dispatch_rows_of(d, d_rows, e), dispatch_rows_of(d, d_out, e),
                               weights + expert_at(model, d->first + e), arena);
    }
    d_rows = dispatch_complete_backward(context, d, d_rows);
    moe_note_rows(context, DISPATCH_GRAD_GAVE, d_rows);
    dispatch_backward(context, d, saved->dnormed, d_rows, arena);
    tensor_round(saved->dnormed, precision_activation(context->precision));
}

void moe_backward_input(const struct layer_context *context, struct tensor dx, struct tensor dy, const struct tensor *weights,
                        void *block_saved, struct arena *arena)
{
    const struct ops *ops = context->ops;
    struct moe_saved *saved = block_saved;
    const struct model_config *model = context->model;

    make_again(context, saved, weights, arena);
    struct tensor masked = dropout_backward(context, DROPOUT_FEED_FORWARD, saved->dropout, dy, arena);
    struct layer_context slice = sequence_slice(context);
    saved->dnormed = layer_matrix_alloc(context, model->dim, arena);
    if (model->moe.shared_ffn > 0) {
        struct tensor d_out = sequence_gather(context, &site_sp_output_grad_gather, masked, context->precision->residual, arena);
        saved->shared.d_out_slice = masked;
        network_backward_input(context, &saved->shared, saved->dnormed, d_out, weights + FIRST_NETWORK, arena);
        saved->dnormed = column_parallel_backward(context, precision_activation(context->precision), saved->dnormed, arena);
    } else {
        saved->dnormed = layer_slice_alloc(context, model->dim, arena);
        memset(saved->dnormed.data, 0, (size_t)tensor_bytes(saved->dnormed));
    }
    saved->d_logits = layer_matrix_alloc(&slice, model->moe.experts, arena);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor d_weight = layer_matrix_alloc(&slice, model->moe.top_k, context->scratch);
    backward_experts(&slice, saved, masked, d_weight, weights, arena);
    router_backward(&slice, &saved->routing, d_weight, saved->d_logits);
    arena_release(context->scratch, mark);
    struct precision precision;
    struct layer_context own = router_context(context, &precision);
    linear_backward_input(&own, precision_activation(context->precision), saved->dnormed, saved->d_logits, weights[ROUTER], true);
    ops->rmsnorm_backward_input(dx, saved->dnormed, saved->x, weights[NORM], saved->rstd);
    ops->vector_add(dx.data, dy.data, dx.data, (size_t)tensor_count(dx));
    tensor_round(dx, context->precision->residual);
}

void moe_backward_weight(const struct layer_context *context, struct tensor *gradients, void *block_saved)
{
    const struct model_config *model = context->model;
    struct moe_saved *saved = block_saved;
    if (model->moe.shared_ffn > 0) {
        struct arena_mark mark = arena_mark(context->scratch);
        saved->shared.in = sequence_gather(context, &site_sp_gather_again, saved->normed, precision_activation(context->precision), context->scratch);
        network_backward_weight(context, &saved->shared, gradients + FIRST_NETWORK, true);
        arena_release(context->scratch, mark);
    }
    for (int e = 0; e < saved->dispatch.experts; e++)
        expert_backward_weight(context, &saved->experts[e], gradients + expert_at(model, saved->dispatch.first + e), !saved->bias_apart);
    add_biases_backward(context, saved, gradients);
    linear_backward_weight(context, gradients[ROUTER], (struct tensor){.data = NULL}, saved->d_logits, saved->normed);
    context->ops->rmsnorm_backward_weight(gradients[NORM], saved->dnormed, saved->x, saved->rstd);
}

double moe_forward_flops(const struct model_config *model, int64_t tokens)
{
    return linear_forward_flops(tokens, model->dim, model->moe.experts) + 3.0 * linear_forward_flops(tokens, model->dim, model->moe.shared_ffn) +
           3.0 * linear_forward_flops(tokens * model->moe.top_k, model->dim, model->moe.expert_ffn);
}
