/* router_auxiliary: the losses that keep experts evenly used and logits small, one value a cell (model/routing.h).
 *
 *   balance = aux_loss_coeff E / (k T^2) * sum over e of (sum over t of p[t,e]) n_e
 *   p = softmax(z), or sigmoid(z) / (sum over the experts + 1e-20); n_e: the tokens that have e among the top_k of p[t,:]
 *   zeta = z_loss_coeff / T * sum over t of lse(z[t,:])^2
 * T and all sums are over the cell's tokens that are not padding (with sequence parallelism: router_slices.c). The choice is p's own: no bias, no groups, nothing
 * dropped. A value of 1 times the coefficient is what even use gives.
 *
 * They are not added to the loss: their gradients are put into that of the logits, each cell's times aux_scale:
 *   dp = c (n_e - min n) with c = aux_loss_coeff E / (k T^2), n constant, then through softmax or sigmoid and division. The p add
 *   up to 1, so that what all n have in common has no gradient: taken out, it leaves 0 where they are equal, and no rounding
 *   dz = 2 z_loss_coeff / T lse(z) softmax(z)
 * Score functions in the storage's format, all else in fp64, experts ascending, tokens ascending; the gradient is rounded once,
 * where it is added.
 *
 * Source: Megatron-LM core/transformer/moe/moe_utils.py (switch_load_balancing_loss_func, z_loss_func,
 * compute_routing_scores_for_aux_loss, MoEAuxLossAutoScaler); Fedus et al. 2021, Zoph et al. 2022. */
#include "model/deviations.h"
#include "model/layers/router.h"

static const double sum_floor = 1e-20;

static bool is_padding(const struct layer_context *context, int64_t t)
{
    return context->router && context->router->padding && context->router->padding[t];
}

static bool is_softmax(const struct moe_config *moe, const struct routing *routing)
{
    return moe->score == MOE_SCORE_SOFTMAX || !routing->as.own_score;
}

/* p of one token; returns what its scores were divided by. */
static double own_scores(const struct routing *routing, bool softmax, int64_t t, int experts, double *ret)
{
    double sum = softmax ? 1 : sum_floor;
    for (int e = 0; e < experts && !softmax; e++) sum += router_get(routing->own, t * experts + e);
    for (int e = 0; e < experts; e++) ret[e] = router_get(routing->own, t * experts + e) / sum;
    return sum;
}

/* The experts that a token counts for: those of its own choice, by the logits, whose order the score functions keep; or (a mistake) of the router's that have room. */
static int seen_of(const struct layer_context *context, struct routing *routing, bool own, int64_t t, double *logits, const struct router_work *work, int32_t *ret)
{
    const struct moe_config *moe = &context->model->moe;
    int seen = 0;
    if (own) {
        for (int e = 0; e < moe->experts; e++) logits[e] = router_get(routing->logits, t * moe->experts + e);
        router_top(logits, moe->experts, moe->top_k, true, ret);
        router_follow_own(context, routing, t, logits, work, ret);
        return moe->top_k;
    }
    for (int64_t i = t * moe->top_k; i < (t + 1) * moe->top_k; i++) {
        if (!routing->kept || routing->kept[i]) ret[seen++] = routing->chosen[i];
    }
    return seen;
}

/* Of the tokens that are here. */
static void add_cell(const struct layer_context *context, struct routing *routing, int c, bool own, double *sums)
{
    const struct moe_config *moe = &context->model->moe;
    int experts = moe->experts;
    struct arena_mark mark = arena_mark(context->scratch);
    double *p = arena_alloc(context->scratch, (size_t)experts * sizeof *p);
    int32_t *seen = arena_alloc(context->scratch, (size_t)moe->top_k * sizeof *seen);
    struct router_work work = router_work_new(context);
    int64_t *counts = routing->aux_counts + (int64_t)c * experts;
    for (int64_t t = routing->cell_first[c]; t < routing->cell_first[c + 1]; t++) {
        if (is_padding(context, t)) continue;
        routing->cell_tokens[c]++;
        own_scores(routing, is_softmax(moe, routing), t, experts, p);
        for (int e = 0; e < experts; e++) sums[e] += p[e];
        for (int i = seen_of(context, routing, own, t, p, &work, seen) - 1; i >= 0; i--) counts[seen[i]]++;
        double lse = router_get(routing->lse, t);
        routing->z[c] += lse * lse;
    }
    arena_release(context->scratch, mark);
}

static void finish_cell(const struct layer_context *context, struct routing *routing, int c, const double *sums)
{
    const struct moe_config *moe = &context->model->moe;
    int experts = moe->experts;
    const int64_t *counts = routing->aux_counts + (int64_t)c * experts;
    double tokens = (double)routing->cell_tokens[c], sum = 0;
    double top_k = factor_site(context->plan, &site_moe_aux_top_k, context->where, moe->top_k, router_numbers(context));
    routing->aux_factor[c] = tokens > 0 ? moe->aux_loss_coeff * experts / (top_k * tokens * tokens) : 0;
    for (int e = 0; e < experts; e++) sum += sums[e] * (double)counts[e];
    routing->aux[c] = routing->aux_factor[c] * sum;
    routing->z[c] *= tokens > 0 ? moe->z_loss_coeff / tokens : 0;
}

void router_auxiliary(const struct layer_context *context, struct routing *routing, struct arena *arena)
{
    const struct moe_config *moe = &context->model->moe;
    size_t cells = (size_t)routing->cells;
    if (moe->aux_loss_coeff <= 0 && moe->z_loss_coeff <= 0) return;
    routing->as.own_score = decision_site(context->plan, &site_moe_aux_score, context->where, true, true);
    bool own = decision_site(context->plan, &site_moe_aux_choice, context->where, true, true);
    routing->cell_tokens = arena_zalloc(arena, cells * sizeof *routing->cell_tokens);
    routing->aux_counts = arena_zalloc(arena, cells * (size_t)moe->experts * sizeof *routing->aux_counts);
    routing->aux_factor = arena_zalloc(arena, cells * sizeof(double));
    routing->aux = arena_zalloc(arena, cells * sizeof(double));
    routing->z = arena_zalloc(arena, cells * sizeof(double));
    routing->own = layer_matrix_alloc(context, moe->experts, arena);
    routing->lse = layer_vector_alloc(context, layer_rows(context), arena);
    if (is_softmax(moe, routing)) context->ops->softmax_forward(routing->own, routing->logits);
    else context->ops->sigmoid_forward(routing->own, routing->logits);
    context->ops->log_sum_exp(routing->lse, routing->logits);
    struct arena_mark mark = arena_mark(context->scratch);
    double *sums = arena_zalloc(context->scratch, cells * (size_t)moe->experts * sizeof *sums);
    for (int c = 0; c < routing->cells; c++) add_cell(context, routing, c, own, sums + c * moe->experts);
    router_sum_counts(context, routing);
    for (int c = 0; c < routing->cells; c++) finish_cell(context, routing, c, sums + c * moe->experts);
    arena_release(context->scratch, mark);
}

/* share: softmax of the logits. */
static void add_token(const struct layer_context *context, const struct routing *routing, struct tensor d_logits, struct tensor share, int c, int64_t t,
                      double scale, double *p)
{
    const struct moe_config *moe = &context->model->moe;
    int experts = moe->experts;
    const int64_t *counts = routing->aux_counts + (int64_t)c * experts;
    bool softmax = is_softmax(moe, routing);
    double sum = own_scores(routing, softmax, t, experts, p), along = 0, factor = routing->aux_factor[c];
    int64_t least = counts[0]; /* the same for all experts moves nothing: the shares add up to 1 */
    for (int e = 1; e < experts; e++) least = counts[e] < least ? counts[e] : least;
    double of_z = 2 * moe->z_loss_coeff / (double)routing->cell_tokens[c] * router_get(routing->lse, t);
    for (int e = 0; e < experts; e++) along += p[e] * factor * (double)(counts[e] - least);
    for (int e = 0; e < experts; e++) {
        int64_t at = t * experts + e;
        double dp = factor * (double)(counts[e] - least) - along, s = router_get(routing->own, at);
        double dz = softmax ? p[e] * dp : dp / sum * s * (1 - s);
        router_set(d_logits, at, router_get(d_logits, at) + scale * (dz + of_z * router_get(share, at)));
    }
}

void router_auxiliary_backward(const struct layer_context *context, const struct routing *routing, struct tensor d_logits)
{
    const struct router_run *run = context->router;
    int experts = context->model->moe.experts;
    if (!routing->aux) return;
    struct arena_mark mark = arena_mark(context->scratch);
    double *p = arena_alloc(context->scratch, (size_t)experts * sizeof *p);
    struct tensor share = layer_matrix_alloc(context, experts, context->scratch);
    context->ops->softmax_forward(share, routing->logits);
    bool kept = decision_site(context->plan, &site_moe_aux, context->where, true, true);
    for (int c = 0; c < routing->cells; c++) {
        double due = run ? run->aux_scale[c] : 1;
        double scale = kept ? factor_site(context->plan, &site_moe_aux_scale, context->where, due, router_numbers(context)) : 0;
        if (run && run->fact) run->fact->aux_scale[c] = scale;
        for (int64_t t = routing->cell_first[c]; scale != 0 && t < routing->cell_first[c + 1]; t++) {
            if (!is_padding(context, t)) add_token(context, routing, d_logits, share, c, t, scale, p);
        }
    }
    arena_release(context->scratch, mark);
}
