/* router_follow: a choice that hangs on rounding is that of the run which this one is held against (model/routing.h).
 *
 * Two healthy runs of one scenario add in other orders, so a token's scores differ in their last bits, and where the last
 * chosen and the first one left out lie closer than that, the runs take other experts: from there on they compute other
 * things, and say nothing of each other. Such a choice is a near tie. The other run's is taken over where the rule itself,
 *
 *   chosen = rule(key + d in the other's choice, key - d outside of it)      d = near_tie m max over e of |z_e| + 2 u max over e of |s_e|
 *
 * gives it: so the margin between the last chosen and the first not chosen is 2 d at most, of this run's own scores, and
 * with groups that of the groups' sums alike. m: the largest slope of the score function, 1/4 (sigmoid) or 1/2 (softmax, whose other logits
 * move too), 1 for logits; u: the roundoff of the format that scores are kept in. A larger margin is no tie: this run
 * keeps its own. Who finds room at a full expert is taken over alike: where those that only this run keeps and those that only
 * the other keeps lie within 2 d, d of a weight being scaling times twice that of a score, over the sum it was divided by.
 * The order within a choice is by this run's own scores. What was taken over is noted. */
#include <math.h>

#include "model/layers/router.h"

static bool has(const int32_t *chosen, int count, int32_t e)
{
    for (int i = 0; i < count; i++) {
        if (chosen[i] == e) return true;
    }
    return false;
}

static bool is_same_set(const int32_t *a, const int32_t *b, int count)
{
    for (int i = 0; i < count; i++) {
        if (!has(a, count, b[i])) return false;
    }
    return true;
}

static double largest(const double *values, int count)
{
    double most = 0;
    for (int i = 0; i < count; i++) most = fmax(most, fabs(values[i]));
    return most;
}

/* keys moved by d towards the other's choice. */
static bool is_near_tie(const struct moe_config *moe, const int32_t *other, const double *keys, double by, const struct router_work *work)
{
    for (int32_t e = 0; e < moe->experts; e++) work->key[e] = keys[e] + (has(other, moe->top_k, e) ? by : -by);
    router_choose(moe, work, true, work->attempt);
    return is_same_set(work->attempt, other, moe->top_k);
}

static void take_over(const struct moe_config *moe, const int32_t *other, const double *keys, const struct router_work *work, int32_t *chosen)
{
    for (int32_t e = 0; e < moe->experts; e++) work->key[e] = has(other, moe->top_k, e) ? keys[e] : -INFINITY;
    router_top(work->key, moe->experts, moe->top_k, true, chosen);
}

/* How far a token's scores may be moved. */
static double move_of(const struct layer_context *context, const struct routing *routing, int64_t t)
{
    const struct moe_config *moe = &context->model->moe;
    double logit = 0, score = 0, slope = moe->score == MOE_SCORE_SIGMOID ? 0.25 : 0.5;
    for (int e = 0; e < moe->experts; e++) {
        logit = fmax(logit, fabs(router_get(routing->logits, t * moe->experts + e)));
        score = fmax(score, fabs(router_get(routing->score, t * moe->experts + e)));
    }
    double roundoff = format_traits[moe->scores_bf16 ? FORMAT_BF16 : routing->score.storage].unit_roundoff;
    return context->router->near_tie * slope * logit + 2 * roundoff * score;
}

void router_follow_choice(const struct layer_context *context, struct routing *routing, int64_t t, const double *keys, const struct router_work *work, int32_t *chosen)
{
    const struct moe_config *moe = &context->model->moe;
    const int32_t *other = context->router && context->router->follow_chosen ? context->router->follow_chosen + t * moe->top_k : NULL;
    if (!other || other[0] < 0 || is_same_set(chosen, other, moe->top_k)) return;
    if (!is_near_tie(moe, other, keys, move_of(context, routing, t), work)) return;
    take_over(moe, other, keys, work, chosen);
    routing->followed[t] |= FOLLOWED_CHOICE;
}

void router_follow_own(const struct layer_context *context, struct routing *routing, int64_t t, const double *logits, const struct router_work *work, int32_t *chosen)
{
    struct moe_config rule = context->model->moe;
    const int32_t *other = context->router && context->router->follow_own ? context->router->follow_own + t * rule.top_k : NULL;
    if (!other || other[0] < 0 || is_same_set(chosen, other, rule.top_k)) return;
    rule.groups = 1; /* the balancing loss' own choice knows none */
    if (!is_near_tie(&rule, other, logits, context->router->near_tie * largest(logits, rule.experts), work)) return;
    take_over(&rule, other, logits, work, chosen);
    routing->followed[t] |= FOLLOWED_OWN;
}

/* ---- room ---- */

/* What pair i may be moved by. */
static double move_of_pair(const struct layer_context *context, const struct routing *routing, int64_t i)
{
    const struct moe_config *moe = &context->model->moe;
    int64_t t = i / moe->top_k;
    double move = move_of(context, routing, t), sum = 0;
    if (routing->as.after_drop) return move; /* kept by score */
    for (int k = 0; k < moe->top_k; k++) sum += router_get(routing->picked, t * moe->top_k + k);
    return 2 * move * fabs(routing->scaling) / (moe->normalize == MOE_NORMALIZE_SUM && sum > 0 ? sum : 1);
}

/* The other run's word on pair i; 2: none. */
static int kept_there(const struct router_run *run, const struct routing *routing, int top_k, int64_t i)
{
    int64_t first = i / top_k * top_k;
    for (int64_t n = first; n < first + top_k && run->follow_chosen[first] >= 0; n++) {
        if (run->follow_chosen[n] == routing->chosen[i]) return run->follow_kept[n];
    }
    return 2;
}

static void follow_at_expert(const struct layer_context *context, struct routing *routing, struct tensor by, int64_t from, int64_t to, int32_t expert)
{
    int top_k = context->model->moe.top_k, here = 0, there = 0;
    double most = -INFINITY, least = INFINITY;
    for (int64_t i = from; i < to; i++) {
        int other = routing->chosen[i] == expert ? kept_there(context->router, routing, top_k, i) : 2;
        if (other == 2 || other == routing->kept[i]) continue;
        double value = router_get(by, i), move = move_of_pair(context, routing, i);
        here += !other;
        there += other;
        if (other) least = fmin(least, value + move);
        else most = fmax(most, value - move);
    }
    if (here == 0 || here != there || !(most <= least)) return;
    for (int64_t i = from; i < to; i++) {
        int other = routing->chosen[i] == expert ? kept_there(context->router, routing, top_k, i) : 2;
        if (other == 2 || other == routing->kept[i]) continue;
        routing->kept[i] = other;
        routing->followed[i / top_k] |= FOLLOWED_ROOM;
    }
}

void router_follow_room(const struct layer_context *context, struct routing *routing, struct tensor by)
{
    const struct moe_config *moe = &context->model->moe;
    if (!context->router || !context->router->follow_chosen || !context->router->follow_kept) return;
    for (int c = 0; c < routing->cells; c++) {
        for (int32_t e = 0; e < moe->experts; e++)
            follow_at_expert(context, routing, by, routing->cell_first[c] * moe->top_k, routing->cell_first[c + 1] * moe->top_k, e);
    }
}
