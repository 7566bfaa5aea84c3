/* router: which experts a token goes to, and how much each of them counts.
 *
 *   s = sigmoid(z)  or  softmax(z) over the experts                       z, s [T,E]
 *   key = s, plus the layer's selection bias; with groups only of the groups_chosen best groups of experts, by the
 *         sum of a group's largest top_k / groups_chosen keys (one at least), ties to the lower group
 *   chosen = the top_k largest of key[t,:], ties to the lower expert       p [T,k]: their scores s, without bias
 *   w = scaling * softmax(p)  or  scaling * p / (sum p + 1e-20)  or  scaling * p
 * What finds no room (router_capacity.c) is left out of p before w (normalize_after_drop), or of w afterwards.
 *
 * Backward, with dw: dp by the normalization, 0 for what was not chosen, then by the score function:
 *   softmax: dp = w' (dw - sum w' dw)    sum: dp = (dw - sum w' dw) / (sum p + 1e-20)    w' = w / scaling
 *   sigmoid: dz = ds s (1 - s)           softmax: dz = s (ds - sum s ds)
 * and the auxiliary losses' own (router_auxiliary.c). The choice has no gradient, nor has the bias.
 * Logits and scores are kept in the storage's format, whatever the compute format is: rounded scores tie. With scores_bf16
 * they are rounded (a gradient passes as if they were not).
 *
 * Sigmoid scores with a softmax over the chosen: PanGu; divided by their sum: DeepSeek-V3 (2024), equation 13, with its
 * bias, equation 16; groups: DeepSeek-V2 (2024) and Megatron-LM core/transformer/moe/moe_utils.py. */
#include "model/layers/router.h"

#include <math.h>

#include "model/deviations.h"
#include "model/precision.h"

static double get(struct tensor t, int64_t i) { return router_get(t, i); }
static void set(struct tensor t, int64_t i, double value) { router_set(t, i, value); }

static bool decide(const struct layer_context *context, const struct site *site)
{
    return decision_site(context->plan, site, context->where, true, true);
}

/* ---- scores ---- */

/* What softmax over a micro-batch's tokens gives, for each expert. */
static void softmax_over_tokens(const struct layer_context *context, struct tensor score, struct tensor logits)
{
    int64_t tokens = score.shape[0], experts = score.shape[1];
    for (int64_t e = 0; e < experts; e++) {
        double largest = -INFINITY;
        for (int64_t t = 0; t < tokens; t++) largest = fmax(largest, get(logits, t * experts + e));
        for (int64_t t = 0; t < tokens; t++) set(score, t * experts + e, get(logits, t * experts + e) - largest);
    }
    context->ops->exponential(score, score);
    for (int64_t e = 0; e < experts; e++) {
        double sum = 0;
        for (int64_t t = 0; t < tokens; t++) sum += get(score, t * experts + e);
        for (int64_t t = 0; t < tokens; t++) set(score, t * experts + e, get(score, t * experts + e) / sum);
    }
}

static void softmax_over_tokens_backward(struct tensor d_logits, struct tensor d_score, struct tensor score)
{
    int64_t tokens = score.shape[0], experts = score.shape[1];
    for (int64_t e = 0; e < experts; e++) {
        double along = 0;
        for (int64_t t = 0; t < tokens; t++) along += get(score, t * experts + e) * get(d_score, t * experts + e);
        for (int64_t t = 0; t < tokens; t++)
            set(d_logits, t * experts + e, get(score, t * experts + e) * (get(d_score, t * experts + e) - along));
    }
}

static void find_scores(const struct layer_context *context, struct routing *routing)
{
    const struct moe_config *moe = &context->model->moe;
    routing->as.over_experts = moe->score == MOE_SCORE_SIGMOID || decide(context, &site_moe_score_axis);
    if (moe->score == MOE_SCORE_SIGMOID) context->ops->sigmoid_forward(routing->score, routing->logits);
    else if (routing->as.over_experts) context->ops->softmax_forward(routing->score, routing->logits);
    else softmax_over_tokens(context, routing->score, routing->logits);
    if (moe->scores_bf16) tensor_round(routing->score, FORMAT_BF16);
    layer_tensor(context, &site_moe_scores, 0, routing->score);
}

/* ---- the choice ---- */

/* Of those not taken yet the largest. */
static int32_t largest(const double *values, int count, const int32_t *taken, int taken_count, bool lower_first)
{
    int32_t best = -1;
    double most = 0;
    for (int32_t e = 0; e < count; e++) {
        double value = values[e];
        bool free = true;
        for (int i = 0; i < taken_count; i++) free = free && taken[i] != e;
        bool better = value > most || (isnan(most) && !isnan(value)) || (!lower_first && value == most);
        if (!free || (best >= 0 && !better)) continue;
        best = e;
        most = value;
    }
    return best;
}

void router_top(const double *values, int count, int k, bool lower_first, int32_t *ret_chosen)
{
    for (int i = 0; i < k; i++) ret_chosen[i] = largest(values, count, ret_chosen, i, lower_first);
}

/* Keys of experts outside the best groups become -infinity; mark: room for groups of numbers and of indices. */
static void limit_to_groups(const struct moe_config *moe, double *key, double *group_score, int32_t *order)
{
    int size = moe->experts / moe->groups, of_each = moe->top_k / moe->groups_chosen;
    for (int g = 0; g < moe->groups; g++) {
        router_top(key + g * size, size, of_each > 0 ? of_each : 1, true, order);
        group_score[g] = 0;
        for (int i = 0; i < (of_each > 0 ? of_each : 1); i++) group_score[g] += key[g * size + order[i]];
    }
    router_top(group_score, moe->groups, moe->groups_chosen, true, order);
    for (int g = 0; g < moe->groups; g++) {
        bool best = false;
        for (int i = 0; i < moe->groups_chosen; i++) best = best || order[i] == g;
        for (int i = 0; i < size && !best; i++) key[g * size + i] = -INFINITY;
    }
}

struct router_work router_work_new(const struct layer_context *context)
{
    size_t experts = (size_t)context->model->moe.experts;
    return (struct router_work){.key = arena_alloc(context->scratch, experts * sizeof(double)), .group_score = arena_alloc(context->scratch, experts * sizeof(double)),
                                .order = arena_alloc(context->scratch, experts * sizeof(int32_t)), .attempt = arena_alloc(context->scratch, experts * sizeof(int32_t))};
}

void router_choose(const struct moe_config *moe, const struct router_work *work, bool lower_first, int32_t *ret_chosen)
{
    if (moe->groups > 1) limit_to_groups(moe, work->key, work->group_score, work->order);
    router_top(work->key, moe->experts, moe->top_k, lower_first, ret_chosen);
}

static void choose(const struct layer_context *context, struct routing *routing, int64_t tokens, struct arena *arena)
{
    const struct moe_config *moe = &context->model->moe;
    const double *bias = context->router ? context->router->bias : NULL;
    int experts = moe->experts, top_k = moe->top_k;
    struct arena_mark mark = arena_mark(context->scratch);
    struct router_work work = router_work_new(context);
    double *biased = arena_alloc(context->scratch, (size_t)experts * sizeof *biased);
    bool lower_first = decide(context, &site_moe_tie) && !context->ties_to_last, by_bias = !bias || decide(context, &site_moe_choice_bias);
    routing->as.unbiased = decide(context, &site_moe_combine_scores);
    routing->chosen = arena_alloc(arena, (size_t)(tokens * top_k) * sizeof *routing->chosen);
    for (int64_t t = 0; t < tokens; t++) {
        int32_t *chosen = routing->chosen + t * top_k;
        for (int e = 0; e < experts; e++) {
            biased[e] = get(routing->score, t * experts + e) + (bias ? bias[e] : 0);
            work.key[e] = by_bias ? biased[e] : get(routing->score, t * experts + e);
        }
        router_choose(moe, &work, lower_first, chosen);
        router_follow_choice(context, routing, t, biased, &work, chosen);
        for (int k = 0; k < top_k; k++)
            set(routing->picked, t * top_k + k, routing->as.unbiased ? get(routing->score, t * experts + chosen[k]) : biased[chosen[k]]);
    }
    arena_release(context->scratch, mark);
}

/* ---- weights ---- */

static const double sum_floor = 1e-20;

/* The picked scores that are normalized together: first, first + stride, ... */
struct together { int64_t first, stride, count; };

static struct together together_with(const struct routing *routing, int64_t i, int top_k)
{
    if (routing->as.over_choices) return (struct together){i / top_k * top_k, 1, top_k};
    return (struct together){i % top_k, top_k, tensor_count(routing->picked) / top_k};
}

/* Is it among those that are normalized? */
static bool counts(const struct routing *routing, int64_t i)
{
    return !routing->as.after_drop || !routing->kept || routing->kept[i];
}

static double sum_of(const struct routing *routing, struct together set)
{
    double sum = 0;
    for (int64_t n = 0, k = set.first; n < set.count; n++, k += set.stride) sum += counts(routing, k) ? get(routing->picked, k) : 0;
    return sum;
}

/* terms: e^p of all that were picked, which are scores: none is large. */
static double softmax_of(const struct routing *routing, struct tensor terms, struct together set, int64_t i)
{
    double sum = 0;
    for (int64_t n = 0, k = set.first; n < set.count; n++, k += set.stride) sum += counts(routing, k) ? get(terms, k) : 0;
    return get(terms, i) / sum;
}

static void weigh(const struct layer_context *context, struct routing *routing, int64_t tokens)
{
    const struct moe_config *moe = &context->model->moe;
    int top_k = moe->top_k;
    routing->as.over_choices = decide(context, &site_moe_normalize_axis);
    routing->scaling = factor_site(context->plan, &site_moe_routed_scaling, context->where, moe->routed_scaling, router_numbers(context));
    bool plain = routing->as.over_choices && !(routing->as.after_drop && routing->kept);
    bool softmax = moe->normalize == MOE_NORMALIZE_SOFTMAX;
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor terms = layer_matrix_alloc(context, top_k, context->scratch);
    if (softmax && plain) context->ops->softmax_forward(routing->weight, routing->picked);
    else if (softmax) context->ops->exponential(terms, routing->picked);
    for (int64_t i = 0; i < tokens * top_k; i++) {
        struct together set_of_i = together_with(routing, i, top_k);
        double value = get(softmax && plain ? routing->weight : routing->picked, i);
        if (!counts(routing, i)) value = 0;
        else if (softmax && !plain) value = softmax_of(routing, terms, set_of_i, i);
        else if (moe->normalize == MOE_NORMALIZE_SUM) value /= sum_of(routing, set_of_i) + sum_floor;
        set(routing->weight, i, value * routing->scaling);
    }
    arena_release(context->scratch, mark);
}

/* ---- all of it ---- */

/* Each token that is not padding counts for its experts. */
static void count(const struct layer_context *context, const struct routing *routing, int64_t tokens)
{
    const struct router_run *run = context->router;
    int top_k = context->model->moe.top_k;
    if (!run || !run->counts) return;
    bool left_out = decide(context, &site_moe_count_padding);
    for (int64_t t = 0; t < tokens; t++) {
        if (left_out && run->padding && run->padding[t]) continue;
        for (int k = 0; k < top_k; k++) run->counts[routing->chosen[t * top_k + k]]++;
    }
    tensor_site(context->plan, &site_moe_counts, context->where, tensor_1d(run->counts, FORMAT_FP64, context->model->moe.experts));
}

static void find_cells(const struct layer_context *context, struct routing *routing, int64_t tokens, struct arena *arena)
{
    const struct router_run *run = context->router;
    routing->cells = run ? run->cells : 1;
    routing->cell_first = arena_zalloc(arena, (size_t)(routing->cells + 1) * sizeof *routing->cell_first);
    routing->cell_first[1] = tokens;
    for (int c = 0; run && c <= routing->cells; c++) routing->cell_first[c] = run->cell_first[c];
}

void router_forward(const struct layer_context *context, struct routing *routing, struct tensor logits, struct arena *arena)
{
    const struct moe_config *moe = &context->model->moe;
    int64_t tokens = logits.shape[0];
    routing->logits = logits;
    routing->score = layer_matrix_alloc(context, moe->experts, arena);
    routing->picked = layer_matrix_alloc(context, moe->top_k, arena);
    routing->weight = layer_matrix_alloc(context, moe->top_k, arena);
    if (context->router && context->router->follow_chosen) routing->followed = arena_zalloc(arena, (size_t)tokens * sizeof *routing->followed);
    find_cells(context, routing, tokens, arena);
    find_scores(context, routing);
    choose(context, routing, tokens, arena);
    routing->as.after_drop = moe->capacity_factor > 0 && moe->normalize_after_drop && decide(context, &site_moe_normalize_order);
    if (routing->as.after_drop) router_drop(context, routing, routing->picked, arena);
    weigh(context, routing, tokens);
    if (!routing->as.after_drop) router_drop(context, routing, routing->weight, arena);
    router_order(context, routing, arena);
    count(context, routing, tokens);
    router_auxiliary(context, routing, arena);
}

/* The gradient of one chosen score. */
static double d_picked(const struct moe_config *moe, const struct routing *routing, struct tensor d_weight, int64_t i)
{
    struct together set = together_with(routing, i, moe->top_k);
    double gradient = get(d_weight, i) * routing->scaling, along = 0;
    if (!counts(routing, i)) return 0;
    if (moe->normalize == MOE_NORMALIZE_NONE || routing->scaling == 0) return gradient;
    for (int64_t n = 0, k = set.first; n < set.count; n++, k += set.stride) along += get(routing->weight, k) * get(d_weight, k);
    if (moe->normalize == MOE_NORMALIZE_SOFTMAX) return get(routing->weight, i) / routing->scaling * (gradient - along);
    return (gradient - along) / (sum_of(routing, set) + sum_floor);
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
    else if (routing->as.over_experts) context->ops->softmax_backward(d_logits, d_score, routing->score);
    else softmax_over_tokens_backward(d_logits, d_score, routing->score);
    router_auxiliary_backward(context, routing, d_logits);
    arena_release(context->scratch, mark);
}
