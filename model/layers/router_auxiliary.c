/* router_auxiliary: the losses that keep experts evenly used and logits small, one value a cell (model/routing.h).
 *
 *   balance = aux_loss_coeff E / (k T^2) * sum over e of (sum over t of p[t,e]) n_e
 *   p = softmax(z), or sigmoid(z) / (sum over the experts + 1e-20); n_e: the tokens that have e among the top_k of p[t,:]
 *   zeta = z_loss_coeff / T * sum over t of lse(z[t,:])^2
 * T and all sums are over the cell's tokens that are not padding. The choice is p's own: no bias, no groups, nothing
 * dropped. A value of 1 times the coefficient is what even use gives.
 *
 * They are not added to the loss: their gradients are put into that of the logits, each cell's times aux_scale:
 *   dp = c n_e with c = aux_loss_coeff E / (k T^2), n constant, then through softmax or sigmoid and division
 *   dz = 2 z_loss_coeff / T lse(z) softmax(z)
 * All in fp64, experts ascending, tokens ascending; the gradient is rounded once, where it is added.
 *
 * Source: Megatron-LM core/transformer/moe/moe_utils.py (switch_load_balancing_loss_func, z_loss_func,
 * compute_routing_scores_for_aux_loss, MoEAuxLossAutoScaler); Fedus et al. 2021, Zoph et al. 2022. */
#include <math.h>

#include "model/deviations.h"
#include "model/layers/router.h"

static const double sum_floor = 1e-20;

static bool is_padding(const struct layer_context *context, int64_t t)
{
    return context->router && context->router->padding && context->router->padding[t];
}

static double square(double x)
{
    return x * x;
}

static double log_sum_exp(struct tensor logits, int64_t t, int experts)
{
    double largest = -INFINITY, sum = 0;
    for (int e = 0; e < experts; e++) largest = fmax(largest, router_get(logits, t * experts + e));
    for (int e = 0; e < experts; e++) sum += exp(router_get(logits, t * experts + e) - largest);
    return largest + log(sum);
}

static bool is_softmax(const struct moe_config *moe, const struct routing *routing)
{
    return moe->score == MOE_SCORE_SOFTMAX || !routing->as.own_score;
}

/* p of one token; returns what sigmoids were divided by. */
static double own_scores(bool softmax, struct tensor logits, int64_t t, int experts, double *ret)
{
    double sum = 0, lse = softmax ? log_sum_exp(logits, t, experts) : 0;
    for (int e = 0; e < experts; e++) {
        double z = router_get(logits, t * experts + e);
        ret[e] = softmax ? exp(z - lse) : 1 / (1 + exp(-z));
        sum += ret[e];
    }
    for (int e = 0; e < experts && !softmax; e++) ret[e] /= sum + sum_floor;
    return sum + sum_floor;
}

/* The experts that a token counts for: those of its own choice, or (a mistake) of the router's that have room. */
static int seen_of(const struct moe_config *moe, const struct routing *routing, bool own, int64_t t, const double *p, int32_t *ret)
{
    int seen = 0;
    if (own) {
        router_top(p, moe->experts, moe->top_k, true, ret);
        return moe->top_k;
    }
    for (int64_t i = t * moe->top_k; i < (t + 1) * moe->top_k; i++) {
        if (!routing->kept || routing->kept[i]) ret[seen++] = routing->chosen[i];
    }
    return seen;
}

static void find_cell(const struct layer_context *context, struct routing *routing, int c, bool own)
{
    const struct moe_config *moe = &context->model->moe;
    int experts = moe->experts;
    struct arena_mark mark = arena_mark(context->scratch);
    double *p = arena_alloc(context->scratch, (size_t)experts * sizeof *p), *sums = arena_zalloc(context->scratch, (size_t)experts * sizeof *sums);
    int32_t *seen = arena_alloc(context->scratch, (size_t)moe->top_k * sizeof *seen);
    int64_t *counts = routing->aux_counts + (int64_t)c * experts;
    for (int64_t t = routing->cell_first[c]; t < routing->cell_first[c + 1]; t++) {
        if (is_padding(context, t)) continue;
        routing->cell_tokens[c]++;
        own_scores(is_softmax(moe, routing), routing->logits, t, experts, p);
        for (int e = 0; e < experts; e++) sums[e] += p[e];
        for (int i = seen_of(moe, routing, own, t, p, seen) - 1; i >= 0; i--) counts[seen[i]]++;
        if (moe->z_loss_coeff > 0) routing->z[c] += square(log_sum_exp(routing->logits, t, experts));
    }
    double tokens = (double)routing->cell_tokens[c], sum = 0;
    double top_k = factor_site(context->plan, &site_moe_aux_top_k, context->where, moe->top_k, router_numbers(context));
    routing->aux_factor[c] = tokens > 0 ? moe->aux_loss_coeff * experts / (top_k * tokens * tokens) : 0;
    for (int e = 0; e < experts; e++) sum += sums[e] * (double)counts[e];
    routing->aux[c] = routing->aux_factor[c] * sum;
    routing->z[c] *= tokens > 0 ? moe->z_loss_coeff / tokens : 0;
    arena_release(context->scratch, mark);
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
    for (int c = 0; c < routing->cells; c++) find_cell(context, routing, c, own);
}

static void add_token(const struct layer_context *context, const struct routing *routing, struct tensor d_logits, int c, int64_t t,
                      double scale, double *p)
{
    const struct moe_config *moe = &context->model->moe;
    int experts = moe->experts;
    const int64_t *counts = routing->aux_counts + (int64_t)c * experts;
    bool softmax = is_softmax(moe, routing);
    double sum = own_scores(softmax, routing->logits, t, experts, p), along = 0, factor = routing->aux_factor[c];
    double lse = moe->z_loss_coeff > 0 ? log_sum_exp(routing->logits, t, experts) : 0;
    double of_z = 2 * moe->z_loss_coeff / (double)routing->cell_tokens[c] * lse;
    for (int e = 0; e < experts; e++) along += p[e] * factor * (double)counts[e];
    for (int e = 0; e < experts; e++) {
        double z = router_get(d_logits, t * experts + e), logit = router_get(routing->logits, t * experts + e);
        double dp = factor * (double)counts[e] - along, s = p[e] * sum;
        double dz = softmax ? p[e] * dp : dp / sum * s * (1 - s);
        router_set(d_logits, t * experts + e, z + scale * (dz + of_z * exp(logit - lse)));
    }
}

void router_auxiliary_backward(const struct layer_context *context, const struct routing *routing, struct tensor d_logits)
{
    const struct router_run *run = context->router;
    int experts = context->model->moe.experts;
    if (!routing->aux) return;
    struct arena_mark mark = arena_mark(context->scratch);
    double *p = arena_alloc(context->scratch, (size_t)experts * sizeof *p);
    bool kept = decision_site(context->plan, &site_moe_aux, context->where, true, true);
    for (int c = 0; c < routing->cells; c++) {
        double due = run ? run->aux_scale[c] : 1;
        double scale = kept ? factor_site(context->plan, &site_moe_aux_scale, context->where, due, router_numbers(context)) : 0;
        if (run && run->fact) run->fact->aux_scale[c] = scale;
        for (int64_t t = routing->cell_first[c]; scale != 0 && t < routing->cell_first[c + 1]; t++) {
            if (!is_padding(context, t)) add_token(context, routing, d_logits, c, t, scale, p);
        }
    }
    arena_release(context->scratch, mark);
}
