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
 * keeps its own. The order within a choice is by this run's own scores. What was taken over is noted. */
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

void router_follow_choice(const struct layer_context *context, struct routing *routing, int64_t t, const double *keys, const struct router_work *work, int32_t *chosen)
{
    const struct moe_config *moe = &context->model->moe;
    const int32_t *other = context->router && context->router->follow_chosen ? context->router->follow_chosen + t * moe->top_k : NULL;
    if (!other || other[0] < 0 || is_same_set(chosen, other, moe->top_k)) return;
    double logit = 0, score = 0, slope = moe->score == MOE_SCORE_SIGMOID ? 0.25 : 0.5;
    for (int e = 0; e < moe->experts; e++) {
        logit = fmax(logit, fabs(router_get(routing->logits, t * moe->experts + e)));
        score = fmax(score, fabs(router_get(routing->score, t * moe->experts + e)));
    }
    double roundoff = format_traits[moe->scores_bf16 ? FORMAT_BF16 : routing->score.storage].unit_roundoff;
    if (!is_near_tie(moe, other, keys, context->router->near_tie * slope * logit + 2 * roundoff * score, work)) return;
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
