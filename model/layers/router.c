/* router: which experts a token goes to, and how much each of them counts.
 *
 *   s = sigmoid(z)  or  softmax(z) over the experts                       z, s [T,E]
 *   chosen = the top_k largest of s[t,:], ties to the lower expert         p [T,k]: their scores
 *   w = scaling * softmax(p)  or  scaling * p / (sum p + 1e-20)  or  scaling * p
 *
 * Backward, with dw: dp by the normalization, 0 for what was not chosen, then by the score function:
 *   softmax: dp = w' (dw - sum w' dw)    sum: dp = (dw - sum w' dw) / (sum p + 1e-20)    w' = w / scaling
 *   sigmoid: dz = ds s (1 - s)           softmax: dz = s (ds - sum s ds)
 * Logits and scores are kept in the storage's format, whatever the compute format is: rounded scores tie.
 *
 * Sigmoid scores with a softmax over the chosen: PanGu; divided by their sum: DeepSeek-V3 (2024), equation 13. */
#include "model/layers/router.h"

#include <math.h>

#include "model/deviations.h"

static double get(struct tensor t, int64_t i)
{
    return format_get(t.data, (size_t)i, t.storage);
}

static void set(struct tensor t, int64_t i, double value)
{
    format_set(t.data, (size_t)i, t.storage, value);
}

/* Of those not taken yet the largest; what is not a number is smaller than all. */
static int32_t largest(struct tensor score, int64_t row, int experts, const int32_t *taken, int taken_count, bool ties_to_last)
{
    int32_t best = -1;
    double most = 0;
    for (int32_t e = 0; e < experts; e++) {
        double value = get(score, row * experts + e);
        bool free = true;
        for (int i = 0; i < taken_count; i++) free = free && taken[i] != e;
        if (!free || (best >= 0 && !(value > most || (ties_to_last && value == most) || (isnan(most) && !isnan(value))))) continue;
        best = e;
        most = value;
    }
    return best;
}

static void choose(struct routing *routing, int64_t tokens, int experts, int top_k, bool ties_to_last, struct arena *arena)
{
    routing->chosen = arena_alloc(arena, (size_t)(tokens * top_k) * sizeof *routing->chosen);
    for (int64_t t = 0; t < tokens; t++) {
        for (int k = 0; k < top_k; k++) {
            int32_t *chosen = routing->chosen + t * top_k;
            chosen[k] = largest(routing->score, t, experts, chosen, k, ties_to_last);
            set(routing->picked, t * top_k + k, get(routing->score, t * experts + chosen[k]));
        }
    }
}

/* A counting sort, so that an expert's tokens stay in their order. */
static void sort_by_expert(struct routing *routing, int64_t tokens, int experts, int top_k, struct arena *arena)
{
    routing->rows = tokens * top_k;
    routing->first = arena_zalloc(arena, (size_t)(experts + 1) * sizeof *routing->first);
    routing->token = arena_alloc(arena, (size_t)routing->rows * sizeof *routing->token);
    routing->slot = arena_alloc(arena, (size_t)routing->rows * sizeof *routing->slot);
    int64_t *next = arena_zalloc(arena, (size_t)(experts + 1) * sizeof *next);
    for (int64_t i = 0; i < routing->rows; i++) routing->first[routing->chosen[i] + 1]++;
    for (int e = 0; e < experts; e++) next[e + 1] = routing->first[e + 1] += routing->first[e];
    for (int64_t i = 0; i < routing->rows; i++) {
        int64_t at = next[routing->chosen[i]]++;
        routing->token[at] = (int32_t)(i / top_k);
        routing->slot[at] = (int32_t)i;
    }
}

static const double sum_floor = 1e-20;

static double row_sum(struct tensor t, int64_t row, int columns)
{
    double sum = 0;
    for (int k = 0; k < columns; k++) sum += get(t, row * columns + k);
    return sum;
}

static void weigh(const struct layer_context *context, struct routing *routing, int64_t tokens, int top_k)
{
    const struct moe_config *moe = &context->model->moe;
    routing->scaling = factor_site(context->plan, &site_moe_routed_scaling, context->where, moe->routed_scaling, NULL);
    if (moe->normalize == MOE_NORMALIZE_SOFTMAX) context->ops->softmax_forward(routing->weight, routing->picked);
    for (int64_t i = 0; i < tokens * top_k; i++) {
        double value = get(moe->normalize == MOE_NORMALIZE_SOFTMAX ? routing->weight : routing->picked, i);
        if (moe->normalize == MOE_NORMALIZE_SUM) value /= row_sum(routing->picked, i / top_k, top_k) + sum_floor;
        set(routing->weight, i, value * routing->scaling);
    }
}

void router_forward(const struct layer_context *context, struct routing *routing, struct tensor logits, struct arena *arena)
{
    const struct moe_config *moe = &context->model->moe;
    int64_t tokens = logits.shape[0];
    routing->score = layer_matrix_alloc(context, moe->experts, arena);
    routing->picked = layer_matrix_alloc(context, moe->top_k, arena);
    routing->weight = layer_matrix_alloc(context, moe->top_k, arena);
    if (moe->score == MOE_SCORE_SIGMOID) context->ops->sigmoid_forward(routing->score, logits);
    else context->ops->softmax_forward(routing->score, logits);
    layer_tensor(context, &site_moe_scores, 0, routing->score);
    choose(routing, tokens, moe->experts, moe->top_k, context->ties_to_last, arena);
    weigh(context, routing, tokens, moe->top_k);
    sort_by_expert(routing, tokens, moe->experts, moe->top_k, arena);
}

/* The gradient of one chosen score. */
static double d_picked(const struct moe_config *moe, const struct routing *routing, struct tensor d_weight, int64_t i)
{
    int top_k = moe->top_k;
    int64_t row = i / top_k;
    double gradient = get(d_weight, i) * routing->scaling, along = 0;
    if (moe->normalize == MOE_NORMALIZE_NONE || routing->scaling == 0) return gradient;
    for (int64_t k = row * top_k; k < (row + 1) * top_k; k++) along += get(routing->weight, k) * get(d_weight, k);
    if (moe->normalize == MOE_NORMALIZE_SOFTMAX) return get(routing->weight, i) / routing->scaling * (gradient - along);
    return (gradient - along) / (row_sum(routing->picked, row, top_k) + sum_floor);
}

void router_backward(const struct layer_context *context, const struct routing *routing, struct tensor d_weight, struct tensor d_logits)
{
    const struct moe_config *moe = &context->model->moe;
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor d_score = layer_matrix_alloc(context, moe->experts, context->scratch);
    int64_t tokens = d_logits.shape[0];
    for (int64_t i = 0; i < tokens * moe->experts; i++) set(d_score, i, 0);
    for (int64_t i = 0; i < tokens * moe->top_k; i++)
        set(d_score, i / moe->top_k * moe->experts + routing->chosen[i], d_picked(moe, routing, d_weight, i));
    if (moe->score == MOE_SCORE_SIGMOID) context->ops->sigmoid_backward(d_logits, d_score, routing->score);
    else context->ops->softmax_backward(d_logits, d_score, routing->score);
    arena_release(context->scratch, mark);
}
