/* routing_due: see routing_due.h. The definitions: model/layers/router.c, router_auxiliary.c, router_capacity.c. */
#include "scenarios/routing_due.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/data.h"
#include "scenarios/facts.h"

void routing_each(const struct evidence *e, struct check_output *output, routing_visit *visit)
{
    const struct record *record = e->parallel;
    if (e->config->model.moe.experts == 0 || record->config.train.steps == 0) return;
    struct arena *arena = arena_new("padding of micro-batches", false);
    int64_t seq = record->config.model.seq, batch = record->config.train.global_batch, sequences = record->config.train.steps * batch;
    struct data data = data_pack(&record->config.data, (int)seq, sequences, arena);
    bool *padding = arena_alloc(arena, (size_t)(sequences * seq + 1) * sizeof *padding);
    for (int64_t t = 0; t < sequences * seq; t++) padding[t] = data.documents[t] == DOCUMENT_PADDING;
    for (int step = 0; step < record->config.train.steps; step++) {
        for (int r = 0; r < record->ranks; r++) {
            const struct rank_record *rank = &record->rank[r];
            for (int i = 0; i < rank->routings.count; i++) {
                const struct routing_fact *fact = &rank->routings.items[i];
                if (fact->step == step) visit(e, output, rank, fact, padding + (step * batch + fact->first_sequence) * seq);
            }
        }
    }
    arena_free(arena);
}

bool routing_is_noted(const struct record *record)
{
    int64_t facts = 0, whole = 0;
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].routings.count; i++) {
            facts++;
            whole += record->rank[r].routings.items[i].whole;
        }
    }
    return whole > 0 || facts == 0;
}

void routing_find(const struct evidence *e, struct check_output *output, const struct site *site, const struct rank_record *rank,
                  const struct routing_fact *fact, const char *pattern, double expected, double got, const char *format, ...)
{
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    struct finding finding = finding_new(site, place_at_unit(&e->parallel->config, rank->rank, fact->step, fact->microbatch, fact->unit));
    finding_pattern(&finding, pattern);
    finding.expected = expected;
    finding.got = got;
    finding_say(&finding, "in step %d on rank %d, layer %d, micro-batch %d: %s", fact->step, rank->rank, fact->unit - 1, fact->microbatch, what);
    check_find(output, &finding);
}

double routing_roundoff(const struct record *record)
{
    return 1024 * format_traits[run_storage(&record->config)].unit_roundoff;
}

bool routing_agree(double a, double b, double relative)
{
    return a == b || (isfinite(a) && isfinite(b) && fabs(a - b) <= relative * fmax(fabs(a), fabs(b)) + 1e-30) || (isnan(a) && isnan(b));
}

static double log_sum_exp(const double *z, int count)
{
    double most = z[0], sum = 0;
    for (int e = 1; e < count; e++) most = fmax(most, z[e]);
    for (int e = 0; e < count; e++) sum += exp(z[e] - most);
    return most + log(sum);
}

double routing_score(const struct moe_config *moe, const double *logits, int e)
{
    return moe->score == MOE_SCORE_SIGMOID ? 1 / (1 + exp(-logits[e])) : exp(logits[e] - log_sum_exp(logits, moe->experts));
}

/* ---- the choice ---- */

void routing_top(const double *keys, int count, int k, int32_t *ret)
{
    for (int i = 0; i < k; i++) {
        ret[i] = -1;
        for (int32_t e = 0; e < count; e++) {
            bool taken = false;
            for (int n = 0; n < i; n++) taken = taken || ret[n] == e;
            if (!taken && (ret[i] < 0 || keys[e] > keys[ret[i]])) ret[i] = e;
        }
    }
}

void routing_keys(const struct moe_config *moe, const struct routing_fact *fact, int64_t token, double *ret)
{
    int E = moe->experts, G = moe->groups > 1 ? moe->groups : 1, size = E / G;
    for (int e = 0; e < E; e++) ret[e] = fact->score[token * E + e] + (fact->bias ? fact->bias[e] : 0);
    if (G == 1) return;
    double *sums = calloc((size_t)G, sizeof *sums);
    int32_t *order = calloc((size_t)E, sizeof *order);
    int each = moe->top_k / moe->groups_chosen;
    each = each > 0 ? each : 1;
    for (int g = 0; g < G; g++) {
        routing_top(ret + g * size, size, each, order);
        for (int i = 0; i < each; i++) sums[g] += ret[g * size + order[i]];
    }
    routing_top(sums, G, moe->groups_chosen, order);
    for (int e = 0; e < E; e++) {
        bool in = false;
        for (int i = 0; i < moe->groups_chosen; i++) in = in || order[i] == e / size;
        if (!in) ret[e] = -INFINITY;
    }
    free(order);
    free(sums);
}

/* ---- weights ---- */

double routing_weight(const struct moe_config *moe, const struct routing_fact *fact, int64_t i, struct weighing how)
{
    int E = moe->experts, k = moe->top_k;
    int64_t first = how.over_tokens ? i % k : i / k * k, stride = how.over_tokens ? k : 1, count = how.over_tokens ? fact->tokens : k;
    bool after_drop = moe->normalize_after_drop && moe->capacity_factor > 0 && !how.before_drop;
    double sum = 0, own = 0;
    if (after_drop && !fact->kept[i]) return 0;
    for (int64_t n = 0, at = first; n < count; n++, at += stride) {
        if (after_drop && !fact->kept[at]) continue;
        int e = fact->chosen[at];
        double p = fact->score[at / k * E + e] + (how.biased && fact->bias ? fact->bias[e] : 0);
        double term = moe->normalize == MOE_NORMALIZE_SOFTMAX ? exp(p) : p;
        sum += term;
        if (at == i) own = term;
    }
    double share = moe->normalize == MOE_NORMALIZE_NONE ? own : own / (moe->normalize == MOE_NORMALIZE_SUM ? sum + 1e-20 : sum);
    return share * moe->routed_scaling;
}

/* ---- auxiliary losses ---- */

double routing_balancing(const struct moe_config *moe, const struct routing_fact *fact, int cell, const bool *padding, struct balancing how)
{
    int E = moe->experts, k = moe->top_k;
    struct moe_config own = *moe;
    if (how.other_score) own.score = MOE_SCORE_SOFTMAX;
    double *sums = calloc((size_t)E, sizeof *sums), *counts = calloc((size_t)E, sizeof *counts), *p = calloc((size_t)E, sizeof *p);
    int32_t *top = calloc((size_t)k, sizeof *top);
    double tokens = 0, value = 0;
    for (int64_t t = fact->cell_first[cell]; t < fact->cell_first[cell + 1]; t++) {
        double all = 0;
        if (padding[t]) continue;
        for (int e = 0; e < E; e++) all += p[e] = routing_score(&own, fact->logits + t * E, e);
        for (int e = 0; e < E && own.score == MOE_SCORE_SIGMOID; e++) p[e] /= all + 1e-20;
        for (int e = 0; e < E; e++) sums[e] += p[e];
        routing_top(fact->logits + t * E, E, k, top); /* the score functions keep the order */
        for (int i = 0; i < k; i++) {
            if (!how.after_drop) counts[top[i]]++;
            else counts[fact->chosen[t * k + i]] += fact->kept[t * k + i];
        }
        tokens++;
    }
    for (int e = 0; e < E; e++) value += sums[e] * counts[e];
    free(top);
    free(p);
    free(counts);
    free(sums);
    return tokens > 0 ? moe->aux_loss_coeff * E / (k * tokens * tokens) * value : 0;
}

double routing_z(const struct moe_config *moe, const struct routing_fact *fact, int cell, const bool *padding)
{
    double sum = 0, tokens = 0;
    for (int64_t t = fact->cell_first[cell]; t < fact->cell_first[cell + 1]; t++) {
        if (padding[t]) continue;
        double lse = log_sum_exp(fact->logits + t * moe->experts, moe->experts);
        sum += lse * lse;
        tokens++;
    }
    return tokens > 0 ? moe->z_loss_coeff * sum / tokens : 0;
}

/* ---- capacity ---- */

int64_t routing_capacity(const struct moe_config *moe, const struct routing_fact *fact, int cell)
{
    int64_t tokens = fact->cell_first[cell + 1] - fact->cell_first[cell];
    double room = ceil((double)tokens * moe->top_k / moe->experts * moe->capacity_factor);
    return moe->capacity_factor > 0 && room < (double)tokens ? (int64_t)room : tokens;
}

void routing_kept(const struct moe_config *moe, const struct routing_fact *fact, enum moe_drop policy, bool *ret)
{
    int E = moe->experts, k = moe->top_k;
    bool by_score = moe->normalize_after_drop;
    for (int c = 0; c < fact->cells; c++) {
        int64_t first = fact->cell_first[c] * k, end = fact->cell_first[c + 1] * k, room = routing_capacity(moe, fact, c);
        for (int64_t i = first; i < end; i++) {
            int64_t before = 0; /* pairs of the same expert that come first */
            double own = by_score ? fact->score[i / k * E + fact->chosen[i]] : fact->weight[i];
            for (int64_t n = first; n < end; n++) {
                if (fact->chosen[n] != fact->chosen[i] || n == i) continue;
                double other = by_score ? fact->score[n / k * E + fact->chosen[n]] : fact->weight[n];
                before += policy == MOE_DROP_POSITION ? n < i : other > own || (other == own && n < i);
            }
            ret[i] = before < room;
        }
    }
}
