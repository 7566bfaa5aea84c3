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
 * Sparse experts: Shazeer et al. 2017; a shared expert: DeepSeekMoE (Dai et al. 2024); no drop: MegaBlocks (Gale et al. 2022). */
#include <stdio.h>
#include <string.h>

#include "model/choices.h"
#include "model/deviations.h"
#include "model/layers/dropout.h"
#include "model/layers/layers.h"
#include "model/layers/linear.h"
#include "model/layers/moe_note.h"
#include "model/layers/router.h"
#include "model/layers/tensor_parallel.h"
#include "model/params.h"
#include "model/precision.h"
#include "sim/assertion.h"

enum { NORM, ROUTER, FIRST_NETWORK };
enum { W1, W2, W3, B1, B2, B3 }; /* of a network; biases only where model.bias */

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
    if (model->moe.shared_ffn > 0) {
        describe_network(model, layer, "shared_expert", model->moe.shared_ffn, FIRST_NETWORK, ret);
        ret[FIRST_NETWORK + W1].cut = ret[FIRST_NETWORK + W3].cut = CUT_ROWS;
        ret[FIRST_NETWORK + W2].cut = CUT_COLUMNS;
        if (model->bias) ret[FIRST_NETWORK + B1].cut = ret[FIRST_NETWORK + B3].cut = CUT_ROWS;
    }
    for (int e = 0; e < model->moe.experts; e++) {
        snprintf(name, sizeof name, "experts.%d", e);
        describe_network(model, layer, name, model->moe.expert_ffn, expert_at(model, e), ret);
    }
    return moe_params(model, layer, NULL);
}

/* ---- one network on the rows it is given ---- */

struct network_saved {
    struct tensor in;                       /* [rows, C] */
    struct tensor gate, up, activated;      /* [rows, F] */
    struct tensor d_out, d_gate, d_up;      /* from the backward on */
};

static struct tensor matrix_alloc(const struct layer_context *context, int64_t rows, int64_t columns, struct arena *arena)
{
    enum format storage = context->ops->storage;
    size_t bytes = (size_t)(rows * columns) * format_storage_bytes(storage);
    return tensor_2d(arena_alloc(arena, bytes ? bytes : 1), storage, rows, columns);
}

static void activate(const struct layer_context *context, struct network_saved *saved)
{
    context->ops->swiglu_forward(saved->activated, saved->gate, saved->up);
    tensor_round(saved->activated, precision_activation(context->precision));
}

/* is_cut: tensor parallelism splits it; last_bias: whether b2 is added. */
static void network_forward(const struct layer_context *context, struct network_saved *saved, struct tensor out, struct tensor in,
                            const struct tensor *weights, bool is_cut, bool last_bias, struct arena *arena)
{
    struct tensor none = {.data = NULL};
    enum format format = precision_activation(context->precision);
    int64_t rows = in.shape[0], ffn = weights[W1].shape[0];
    saved->in = in;
    saved->gate = matrix_alloc(context, rows, ffn, arena);
    saved->up = matrix_alloc(context, rows, ffn, arena);
    if (rows == 0) return;
    struct arena_mark mark = arena_mark(context->scratch);
    saved->activated = matrix_alloc(context, rows, ffn, layer_keeps(context, RECOMPUTE_MOE_ACTIVATION, arena));
    linear_forward(context, format, saved->gate, in, weights[W1], layer_bias(context, weights, B1));
    linear_forward(context, format, saved->up, in, weights[W3], layer_bias(context, weights, B3));
    activate(context, saved);
    struct tensor bias = last_bias ? layer_bias(context, weights, B2) : none;
    if (is_cut) row_parallel_forward(context, format, out, saved->activated, weights[W2], bias);
    else linear_forward(context, format, out, saved->activated, weights[W2], bias);
    arena_release(context->scratch, mark);
}

static void network_backward_input(const struct layer_context *context, struct network_saved *saved, struct tensor d_in,
                                   struct tensor d_out, const struct tensor *weights, struct arena *arena)
{
    enum format format = precision_activation(context->precision);
    int64_t rows = saved->in.shape[0], ffn = weights[W1].shape[0];
    saved->d_out = d_out;
    saved->d_gate = matrix_alloc(context, rows, ffn, arena);
    saved->d_up = matrix_alloc(context, rows, ffn, arena);
    if (rows == 0) return;
    if (context->recompute & RECOMPUTE_MOE_ACTIVATION) {
        saved->activated = matrix_alloc(context, rows, ffn, arena);
        activate(context, saved);
    }
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor d_activated = matrix_alloc(context, rows, ffn, context->scratch);
    linear_backward_input(context, format, d_activated, d_out, weights[W2], false);
    context->ops->swiglu_backward(saved->d_gate, saved->d_up, d_activated, saved->gate, saved->up);
    tensor_round(saved->d_gate, format);
    tensor_round(saved->d_up, format);
    arena_release(context->scratch, mark);
    linear_backward_input(context, format, d_in, saved->d_gate, weights[W1], false);
    linear_backward_input(context, format, d_in, saved->d_up, weights[W3], true);
}

static void network_backward_weight(const struct layer_context *context, const struct network_saved *saved, struct tensor *gradients, bool last_bias)
{
    struct tensor none = {.data = NULL};
    if (saved->in.shape[0] == 0) return;
    linear_backward_weight(context, gradients[W2], last_bias ? layer_bias(context, gradients, B2) : none, saved->d_out, saved->activated);
    linear_backward_weight(context, gradients[W1], layer_bias(context, gradients, B1), saved->d_gate, saved->in);
    linear_backward_weight(context, gradients[W3], layer_bias(context, gradients, B3), saved->d_up, saved->in);
}

/* A product over rows reads them in multiples of row_alignment: behind an expert's own come rows of zeros, which add
 * nothing to a gradient. clean: they are zeroed; else they are what memory held. */
static struct tensor padded_rows(const struct layer_context *context, struct tensor t, int64_t rows, bool clean)
{
    struct tensor padded = matrix_alloc(context, rows, t.shape[1], context->scratch);
    size_t own = (size_t)tensor_bytes(t), all = (size_t)tensor_bytes(padded);
    memcpy(padded.data, t.data, own);
    if (clean) memset((char *)padded.data + own, 0, all - own);
    else memory_poison((char *)padded.data + own, all - own);
    return padded;
}

static void expert_backward_weight(const struct layer_context *context, const struct network_saved *saved, struct tensor *gradients, bool last_bias)
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

/* ---- the block ---- */

struct moe_saved {
    struct tensor x, rstd, normed;
    struct routing routing;
    struct tensor rows_in, rows_out, row_weight; /* [rows, C] in the order of experts, [rows] */
    struct network_saved shared, *experts;       /* [experts] */
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

static struct tensor rows_of(struct tensor t, const struct routing *routing, int e)
{
    return tensor_rows(t, routing->bounds[e], routing->bounds[e + 1] - routing->bounds[e]);
}

static void route(const struct layer_context *context, struct moe_saved *saved, const struct tensor *weights, struct arena *arena)
{
    struct precision precision;
    struct layer_context own = router_context(context, &precision);
    struct tensor logits = layer_matrix_alloc(context, context->model->moe.experts, arena);
    linear_forward(&own, context->ops->storage, logits, saved->normed, weights[ROUTER], (struct tensor){.data = NULL});
    router_forward(context, &saved->routing, logits, arena);
    const struct routing *routing = &saved->routing;
    saved->row_weight = tensor_1d(matrix_alloc(context, routing->rows, 1, arena).data, context->ops->storage, routing->rows);
    struct tensor slots = tensor_2d(routing->weight.data, routing->weight.storage, tensor_count(routing->weight), 1);
    context->ops->gather_rows(tensor_2d(saved->row_weight.data, slots.storage, routing->rows, 1), slots, routing->back_slot);
}

/* What an expert's bias adds to its tokens where no weight multiplies it; its gradient. */
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
    saved->normed = layer_matrix_alloc(context, context->model->dim, arena);
    context->ops->rmsnorm_forward(saved->normed, saved->rstd, saved->x, weights[NORM], context->model->norm_eps);
    tensor_round(saved->normed, precision_activation(context->precision));
}

static void permute(const struct layer_context *context, struct moe_saved *saved, struct arena *arena)
{
    saved->rows_in = matrix_alloc(context, saved->routing.rows, context->model->dim, arena);
    context->ops->gather_rows(saved->rows_in, saved->normed, saved->routing.from);
    tensor_site(context->plan, &site_moe_dispatch, context->where, saved->rows_in);
}

/* Before the backward: what the forward did not keep. */
static void make_again(const struct layer_context *context, struct moe_saved *saved, const struct tensor *weights, struct arena *arena)
{
    if (context->recompute & RECOMPUTE_MOE_RMSNORM) norm(context, saved, weights, arena);
    if (context->recompute & RECOMPUTE_MOE_PERMUTE) permute(context, saved, arena);
    if (context->model->moe.shared_ffn > 0) saved->shared.in = saved->normed;
    for (int e = 0; e < context->model->moe.experts; e++) saved->experts[e].in = rows_of(saved->rows_in, &saved->routing, e);
}

static void run_experts(const struct layer_context *context, struct moe_saved *saved, struct tensor routed,
                        const struct tensor *weights, struct arena *arena)
{
    const struct model_config *model = context->model;
    const struct routing *routing = &saved->routing;
    permute(context, saved, layer_keeps(context, RECOMPUTE_MOE_PERMUTE, arena));
    saved->rows_out = matrix_alloc(context, routing->rows, model->dim, arena);
    saved->experts = arena_zalloc(arena, (size_t)model->moe.experts * sizeof *saved->experts);
    saved->bias_apart = model->bias && !decision_site(context->plan, &site_moe_expert_bias, context->where, true, true);
    for (int e = 0; e < model->moe.experts; e++) {
        network_forward(context, &saved->experts[e], rows_of(saved->rows_out, routing, e), rows_of(saved->rows_in, routing, e),
                        weights + expert_at(model, e), false, !saved->bias_apart, arena);
    }
    memset(routed.data, 0, (size_t)tensor_bytes(routed));
    context->ops->scatter_add_rows(routed, saved->rows_out, routing->back_token, saved->row_weight);
    add_biases(context, saved, routed, weights);
    tensor_round(routed, precision_activation(context->precision));
    layer_tensor(context, &site_moe_combine, 0, routed);
    moe_note_forward(context, routing, saved->normed, saved->rows_in, saved->rows_out, routed);
}

void *moe_forward(const struct layer_context *context, struct tensor y, struct tensor x, const struct tensor *weights,
                  struct arena *arena)
{
    const struct ops *ops = context->ops;
    enum format format = precision_activation(context->precision);
    struct moe_saved *saved = arena_zalloc(arena, sizeof *saved);
    size_t count = (size_t)tensor_count(y);

    saved->x = x;
    saved->rstd = layer_vector_alloc(context, layer_rows(context), arena);
    struct arena_mark mark = arena_mark(context->scratch);
    norm(context, saved, weights, layer_keeps(context, RECOMPUTE_MOE_RMSNORM, arena));
    route(context, saved, weights, arena);
    struct tensor routed = layer_matrix_alloc(context, context->model->dim, context->scratch);
    run_experts(context, saved, routed, weights, arena);
    if (context->model->moe.shared_ffn > 0) {
        network_forward(context, &saved->shared, y, saved->normed, weights + FIRST_NETWORK, true, true, arena);
        ops->vector_add(routed.data, routed.data, y.data, count);
        tensor_round(routed, format);
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
    const struct routing *routing = &saved->routing;
    enum format format = precision_activation(context->precision);
    struct tensor d_out = matrix_alloc(context, routing->rows, model->dim, arena);
    struct tensor d_rows = matrix_alloc(context, routing->rows, model->dim, context->scratch);
    context->ops->gather_rows(d_out, dy, routing->back_token);
    if (saved->bias_apart) saved->d_routed = dy;
    struct tensor dots = tensor_1d(matrix_alloc(context, routing->rows, 1, context->scratch).data, dy.storage, routing->rows);
    context->ops->row_dots(dots, saved->rows_out, d_out);
    memset(d_weight.data, 0, (size_t)tensor_bytes(d_weight));
    for (int64_t i = 0; i < routing->rows; i++) router_set(d_weight, routing->back_slot[i], router_get(d_weight, routing->back_slot[i]) + router_get(dots, i));
    moe_note_gate(context, d_weight, true);
    tensor_site(context->plan, &site_moe_gate_gradient, context->where, d_weight);
    moe_note_gate(context, d_weight, false);
    context->ops->scale_rows(d_out, d_out, saved->row_weight);
    tensor_round(d_out, format);
    for (int e = 0; e < model->moe.experts; e++) {
        network_backward_input(context, &saved->experts[e], rows_of(d_rows, routing, e), rows_of(d_out, routing, e),
                               weights + expert_at(model, e), arena);
    }
    context->ops->scatter_add_rows(saved->dnormed, d_rows, routing->from, (struct tensor){.data = NULL});
    tensor_round(saved->dnormed, format);
}

void moe_backward_input(const struct layer_context *context, struct tensor dx, struct tensor dy, const struct tensor *weights,
                        void *block_saved, struct arena *arena)
{
    const struct ops *ops = context->ops;
    struct moe_saved *saved = block_saved;
    const struct model_config *model = context->model;

    make_again(context, saved, weights, arena);
    struct tensor masked = dropout_backward(context, DROPOUT_FEED_FORWARD, saved->dropout, dy, arena);
    saved->dnormed = layer_matrix_alloc(context, model->dim, arena);
    if (model->moe.shared_ffn > 0) {
        network_backward_input(context, &saved->shared, saved->dnormed, masked, weights + FIRST_NETWORK, arena);
        saved->dnormed = column_parallel_backward(context, precision_activation(context->precision), saved->dnormed, arena);
    } else {
        memset(saved->dnormed.data, 0, (size_t)tensor_bytes(saved->dnormed));
    }
    saved->d_logits = layer_matrix_alloc(context, model->moe.experts, arena);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor d_weight = layer_matrix_alloc(context, model->moe.top_k, context->scratch);
    backward_experts(context, saved, masked, d_weight, weights, arena);
    router_backward(context, &saved->routing, d_weight, saved->d_logits);
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
    if (model->moe.shared_ffn > 0) network_backward_weight(context, &saved->shared, gradients + FIRST_NETWORK, true);
    for (int e = 0; e < model->moe.experts; e++)
        expert_backward_weight(context, &saved->experts[e], gradients + expert_at(model, e), !saved->bias_apart);
    add_biases_backward(context, saved, gradients);
    linear_backward_weight(context, gradients[ROUTER], (struct tensor){.data = NULL}, saved->d_logits, saved->normed);
    context->ops->rmsnorm_backward_weight(gradients[NORM], saved->dnormed, saved->x, saved->rstd);
}

double moe_forward_flops(const struct model_config *model, int64_t tokens)
{
    return linear_forward_flops(tokens, model->dim, model->moe.experts) + 3.0 * linear_forward_flops(tokens, model->dim, model->moe.shared_ffn) +
           3.0 * linear_forward_flops(tokens * model->moe.top_k, model->dim, model->moe.expert_ffn);
}
