/* routing: what a router computed follows, number by number, from the logits that it noted.
 *
 * Made anew by the definitions (scenarios/routing_due.h) from what goes before:
 *   scores from logits; the choice from scores, bias and groups, ties to the lower expert; weights from scores, choice and
 *   room; auxiliary losses from logits; the gradient that the router is given for a weight from the expert's output
 * and, against the standalone run, each expert's output for a (token, expert) whose input is equal to the bit: equal to
 * the bit in step 0, where parameters are (--gemm openblas: 1024 roundings).
 * Choices that the layout's rounding turns are counted and noted (scenarios/routing_follow.h).
 * Limit: 1024 roundings of the storage, relative; 2^-7 where scores are rounded to bf16; the choice exact. Sites: the part
 * whose own input agrees. Facts that had no room in the record are not looked at. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/precision.h"
#include "model/sites.h"
#include "scenarios/conservation_dispatch.h"
#include "scenarios/facts.h"
#include "scenarios/routing_due.h"
#include "scenarios/routing_follow.h"

static double relative(double a, double b)
{
    return a == b ? 0 : fabs(a - b) / fmax(fmax(fabs(a), fabs(b)), 1e-30);
}

static bool is_over_tokens(const struct routing_fact *fact)
{
    for (int e = 0; e < fact->experts; e++) {
        double sum = 0;
        for (int64_t t = 0; t < fact->tokens; t++) sum += fact->score[t * fact->experts + e];
        if (fabs(sum - 1) > 1e-3) return false;
    }
    return true;
}

static bool is_rounded(const double *values, int64_t count)
{
    int64_t some;
    return vector_bits(values, (size_t)count, FORMAT_FP64, &some) <= format_traits[FORMAT_BF16].significand_bits;
}

static bool check_scores(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact)
{
    const struct moe_config *moe = &e->config->model.moe;
    double limit = moe->scores_bf16 ? 0x1p-7 : routing_roundoff(e->parallel);
    for (int64_t i = 0; i < fact->tokens * fact->experts; i++) {
        double due = routing_score(moe, fact->logits + i / fact->experts * fact->experts, (int)(i % fact->experts)), got = fact->score[i];
        check_value(output, relative(due, got), limit);
        if (routing_agree(due, got, limit)) continue;
        bool tokens = moe->score == MOE_SCORE_SOFTMAX && is_over_tokens(fact), rounded = is_rounded(fact->score, fact->tokens * fact->experts);
        routing_find(e, output, tokens ? &site_moe_score_axis : &site_moe_scores, rank, fact, tokens ? "over-tokens" : rounded ? "rounded" : "altered", due, got,
                     "the score of token %lld for expert %d is %.9g where its logits give %.9g%s", (long long)(i / fact->experts),
                     (int)(i % fact->experts), got, due, tokens ? ": the scores of each expert add up to 1 over the tokens" : rounded ? ": all scores have the few bits of bf16" : "");
        return false;
    }
    return true;
}

/* Are all choices those that the scores make, and no bias? */
static bool chooses_without_bias(const struct moe_config *moe, const struct routing_fact *fact)
{
    struct routing_fact other = *fact;
    int E = fact->experts, k = fact->top_k;
    double *keys = calloc((size_t)E, sizeof *keys);
    int32_t *due = calloc((size_t)k, sizeof *due);
    bool without = fact->bias != NULL;
    other.bias = NULL;
    for (int64_t t = 0; t < fact->tokens && without; t++) {
        routing_keys(moe, &other, t, keys);
        routing_top(keys, E, k, due);
        without = !memcmp(due, fact->chosen + t * k, (size_t)k * sizeof *due);
    }
    free(due);
    free(keys);
    return without;
}

static bool check_choice(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact)
{
    const struct moe_config *moe = &e->config->model.moe;
    int E = fact->experts, k = fact->top_k;
    double *keys = calloc((size_t)E, sizeof *keys);
    int32_t *due = calloc((size_t)k, sizeof *due);
    bool good = true;
    for (int64_t t = 0; t < fact->tokens && good; t++) {
        const int32_t *got = fact->chosen + t * k;
        routing_keys(moe, fact, t, keys);
        routing_top(keys, E, k, due);
        good = !memcmp(due, got, (size_t)k * sizeof *due) || (fact->followed && fact->followed[t] & FOLLOWED_CHOICE);
        check_value(output, !good, 0);
        if (good) continue;
        bool ties = true;
        int at = 0;
        for (int i = k - 1; i >= 0; i--) {
            ties = ties && keys[due[i]] == keys[got[i]];
            if (due[i] != got[i]) at = i;
        }
        bool without = !ties && chooses_without_bias(moe, fact);
        routing_find(e, output, without ? &site_moe_choice_bias : &site_moe_tie, rank, fact, without ? "without-bias" : ties ? "tie-order" : "other-choice", due[at], got[at],
                     "token %lld takes expert %d as choice %d where expert %d is due%s", (long long)t, got[at], at, due[at],
                     without ? ": all tokens choose by their scores, without the selection bias" : ties ? ": their scores are equal, and the lower one goes first" : "");
    }
    free(due);
    free(keys);
    return good;
}

static bool all_weights_are(const struct moe_config *moe, const struct routing_fact *fact, struct weighing how, double limit)
{
    for (int64_t i = 0; i < fact->tokens * fact->top_k; i++) {
        if (!routing_agree(routing_weight(moe, fact, i, how), fact->weight[i], limit)) return false;
    }
    return true;
}

static void check_weights(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact)
{
    static const struct { struct weighing how; const struct site *site; const char *pattern, *words; } mistakes[] = {
        {{.biased = true}, &site_moe_combine_scores, "with-bias", ": it is made from scores with the selection bias"},
        {{.over_tokens = true}, &site_moe_normalize_axis, "over-tokens", ": weights are normalized over the tokens"},
        {{.before_drop = true}, &site_moe_normalize_order, "before-drop", ": weights are normalized over the dropped ones too"},
    };
    const struct moe_config *moe = &e->config->model.moe;
    double limit = 4 * routing_roundoff(e->parallel);
    for (int64_t i = 0; i < fact->tokens * fact->top_k; i++) {
        double due = routing_weight(moe, fact, i, (struct weighing){false, false, false}), got = fact->weight[i];
        check_value(output, relative(due, got), limit);
        if (routing_agree(due, got, limit)) continue;
        size_t m = 0, count = sizeof mistakes / sizeof mistakes[0];
        while (m < count && !all_weights_are(moe, fact, mistakes[m].how, limit)) m++;
        routing_find(e, output, m < count ? mistakes[m].site : &site_moe_routed_scaling, rank, fact, m < count ? mistakes[m].pattern : "altered", due, got,
                     "choice %d of token %lld weighs %.9g where its scores give %.9g%s", (int)(i % fact->top_k), (long long)(i / fact->top_k), got, due,
                     m < count ? mistakes[m].words : "");
        return;
    }
}

/* The reference alone takes anything over (scenarios/routing_follow.h): where its own books are read. */
static bool took_over(const struct routing_fact *fact, int what)
{
    for (int64_t t = 0; fact->followed && t < fact->tokens; t++) {
        if (fact->followed[t] & what) return true;
    }
    return false;
}

static void check_auxiliary(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact,
                            const bool *padding)
{
    const struct moe_config *moe = &e->config->model.moe;
    double limit = routing_roundoff(e->parallel);
    if (!fact->aux || !fact->whole || took_over(fact, FOLLOWED_OWN)) return;
    for (int c = 0; c < fact->cells; c++) {
        double due = routing_balancing(moe, fact, c, padding, (struct balancing){false, false}), got = fact->aux[c], z = routing_z(moe, fact, c, padding);
        check_value(output, fmax(relative(due, got), relative(z, fact->z[c])), limit);
        if (!routing_agree(z, fact->z[c], limit)) {
            routing_find(e, output, &site_moe_aux_score, rank, fact, "altered", z, fact->z[c], "the z-loss is %.9g where the logits give %.9g", fact->z[c], z);
        }
        if (routing_agree(due, got, limit)) continue;
        bool k = routing_agree(due * fact->top_k, got, limit);
        bool score = !k && routing_agree(routing_balancing(moe, fact, c, padding, (struct balancing){true, false}), got, limit);
        bool drop = !k && !score && routing_agree(routing_balancing(moe, fact, c, padding, (struct balancing){false, true}), got, limit);
        routing_find(e, output, k ? &site_moe_aux_top_k : drop ? &site_moe_aux_choice : &site_moe_aux_score, rank, fact,
                     k ? "top-k-factor" : score ? "other-score" : drop ? "other-choice" : "altered", due, got, "the balancing loss is %.9g where the logits give %.9g%s",
                     got, due, k ? ": top_k times it" : score ? ": it is made from a softmax" : drop ? ": it counts the router's choice after bias and drop" : "");
        break;
    }
}

static void check_gate(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact)
{
    bool zeros = true;
    if (!fact->backward || !fact->gate || !fact->gate_due) return;
    for (int64_t i = 0; i < fact->tokens * fact->top_k; i++) zeros = zeros && fact->gate[i] == 0;
    for (int64_t i = 0; i < fact->tokens * fact->top_k; i++) {
        double due = fact->gate_due[i], got = fact->gate[i];
        bool equal = due == got || (isnan(due) && isnan(got));
        check_value(output, equal ? 0 : relative(due, got), 0);
        if (equal) continue;
        routing_find(e, output, &site_moe_gate_gradient, rank, fact, zeros ? "zeros" : "altered", due, got,
                     "the router is given a gradient of %.9g for choice %d of token %lld where the expert's output makes it %.9g", got, (int)(i % fact->top_k),
                     (long long)(i / fact->top_k), due);
        return;
    }
}

/* ---- against the standalone run ---- */

static int64_t row_of(const struct routing_fact *fact, int64_t token, int expert)
{
    for (int64_t i = fact->first[expert]; i < fact->first[expert + 1]; i++) {
        if (fact->slot[i] / fact->top_k == token) return i;
    }
    return -1;
}

static const struct routing_fact *standalone_fact(const struct record *record, int step, int unit)
{
    const struct rank_record *rank = &record->rank[0];
    for (int i = 0; i < rank->routings.count; i++) {
        const struct routing_fact *fact = &rank->routings.items[i];
        if (fact->step == step && fact->unit == unit && fact->whole) return fact;
    }
    return NULL;
}

static void check_experts(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact)
{
    const struct routing_fact *other = fact->step == 0 ? standalone_fact(e->standalone, fact->step, fact->unit) : NULL;
    /* With sums over ranks (tp, merges of attention over cp, partial sums of experts), equal tags of rows that differ in their last bits are possible. */
    const struct layout *layout = &e->parallel->config.layout;
    bool exact = !strcmp(e->parallel->gemm, "fixed") && layout->tp == 1 && layout_cp(layout) == 1 && (layout_ep(layout) == 1 || layout->dispatcher == DISPATCH_ALL_TO_ALL);
    double limit = exact ? 0 : 1024 * precision_roundoff(&e->parallel->config.precision);
    if (!other || !facts_sample_is_due(e->parallel, fact->step, rank->data_rank, fact->microbatch)) return;
    for (int64_t i = 0; i < fact->rows; i++) {
        int64_t token = fact->slot[i] / fact->top_k;
        int expert = fact->chosen[fact->slot[i]];
        bool own = i >= fact->bounds[expert] && i < fact->bounds[expert + 1] && (fact->dispatch.members > 0 || routing_row_is_seen(fact, fact->slot[i]));
        int64_t whole = routing_token(e->parallel, rank, fact, token), there = own && whole < other->tokens ? row_of(other, whole, expert) : -1;
        int64_t at = i;
        const struct routing_fact *computing = fact->dispatch.members > 0 ? dispatch_row_at(e, rank, fact, i, &at) : fact;
        if (there < 0 || !computing) continue;
        double in = computing == fact && fact->dispatch.members == 0 ? fact->in[i] : computing->dispatch.tags[DISPATCH_READ][at];
        double out = computing == fact && fact->dispatch.members == 0 ? fact->out[i] : computing->dispatch.tags[DISPATCH_GAVE][at];
        if (in != other->in[there]) continue;
        double by = fabs(out - other->out[there]) / fmax(other->out_size[there], 1e-300);
        check_value(output, by, limit);
        if (by <= limit) continue;
        routing_find(e, output, &site_moe_expert_bias, rank, fact, "altered", other->out[there], out,
                     "what expert %d makes of token %lld differs from standalone by %.3g though its input is equal", expert, (long long)token, by);
        return;
    }
}

static void visit(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact,
                  const bool *padding)
{
    if (!fact->whole) return;
    check_scores(e, output, rank, fact);
    if (check_choice(e, output, rank, fact)) check_weights(e, output, rank, fact);
    (void)padding;
    check_gate(e, output, rank, fact);
    check_experts(e, output, rank, fact);
}

static void count_near_ties(const struct evidence *e, struct check_output *output)
{
    struct routing_difference ties = routing_difference_of(e->parallel, e->standalone);
    char text[WARNING_TEXT];
    if (ties.followed == 0) return;
    snprintf(text, sizeof text, "%lld of %lld choices of experts are near ties, within %d roundings, which the layout's rounding turns: the reference "
             "follows the parallel run in them", (long long)ties.followed, (long long)ties.tokens, ROUTING_NEAR_TIE);
    check_warn(output, text);
}

static void run(const struct evidence *e, struct check_output *output)
{
    if (e->config->model.moe.experts == 0) {
        check_skip(output, "the model has no experts");
        return;
    }
    if (!routing_is_noted(e->parallel)) {
        check_skip(output, "the record has no room for what the routers chose for so many tokens");
        return;
    }
    check_value(output, 0, 0);
    routing_each(e, output, visit);
    routing_each_whole(e, output, check_auxiliary);
    count_near_ties(e, output);
}

const struct check check_routing = {
    .id = "routing",
    .proves = "what a router computes follows from its logits: scores, choice, weights, auxiliary losses, the gradient of a weight; an expert's "
              "output is the one that standalone has for the same token",
    .tier = "default",
    .run = run,
};
