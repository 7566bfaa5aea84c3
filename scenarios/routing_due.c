/* routing_due: see routing_due.h. The definitions: model/layers/router.c, router_auxiliary.c, router_capacity.c. */
#include "scenarios/routing_due.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/data.h"
#include "scenarios/facts.h"

/* Tokens of each sequence that a fact has. */
static int64_t rows_of(const struct record *record, const struct rank_record *rank)
{
    const struct layout *layout = &record->config.layout;
    return facts_rows_due(&record->config, rank->cp) / (layout_slices_sequences(layout) ? layout->tp : 1);
}

static bool is_cut(const struct record *record)
{
    return layout_slices_sequences(&record->config.layout) || layout_cp(&record->config.layout) > 1;
}

int64_t routing_token(const struct record *record, const struct rank_record *rank, const struct routing_fact *fact, int64_t token)
{
    int64_t seq = record->config.model.seq, own = rows_of(record, rank);
    int64_t position = fact->positions ? fact->positions[token] : (own < seq ? own * rank->tp : 0) + token % own;
    return (fact->first_sequence + token / own) * seq + position;
}

int64_t routing_sequence(const struct record *record, const struct rank_record *rank, const struct routing_fact *fact, int64_t token)
{
    return fact->first_sequence + token / rows_of(record, rank);
}

/* [tokens] of a fact, from those of its step. */
static const bool *padding_of(const struct record *record, const struct rank_record *rank, const struct routing_fact *fact, const bool *step, struct arena *arena)
{
    if (!is_cut(record)) return step + fact->first_sequence * record->config.model.seq;
    bool *own = arena_alloc(arena, (size_t)fact->tokens + 1);
    for (int64_t t = 0; t < fact->tokens; t++) own[t] = step[routing_token(record, rank, fact, t)];
    return own;
}

/* Of the ranks that have the same sequences. */
struct slice { const struct rank_record *rank; const struct routing_fact *fact; };

static struct slice same_fact(const struct record *record, const struct rank_record *rank, const struct routing_fact *fact, int cp, int tp)
{
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *other = &record->rank[r];
        if (other->stage != rank->stage || other->shard - other->cp != rank->shard - rank->cp || other->replicate != rank->replicate || other->cp != cp || other->tp != tp) continue;
        for (int i = 0; i < other->routings.count; i++) {
            const struct routing_fact *like = &other->routings.items[i];
            if (like->step == fact->step && like->microbatch == fact->microbatch && like->unit == fact->unit) return (struct slice){other, like};
        }
    }
    return (struct slice){0};
}

/* Rows of a token each, from each slice's to the whole's. */
static void *put_together(const struct record *record, const struct slice *slices, int count, int64_t tokens, size_t row, const void *(*of)(const struct routing_fact *), struct arena *arena)
{
    char *whole = arena_alloc(arena, (size_t)tokens * row + 1);
    for (int m = 0; m < count; m++) {
        const struct routing_fact *fact = slices[m].fact;
        int64_t first = fact->first_sequence * record->config.model.seq;
        for (int64_t t = 0; t < fact->tokens; t++)
            memcpy(whole + (size_t)(routing_token(record, slices[m].rank, fact, t) - first) * row, (const char *)of(fact) + (size_t)t * row, row);
    }
    return whole;
}

static const void *logits_of(const struct routing_fact *fact) { return fact->logits; }
static const void *score_of(const struct routing_fact *fact) { return fact->score; }
static const void *chosen_of(const struct routing_fact *fact) { return fact->chosen; }
static const void *kept_of(const struct routing_fact *fact) { return fact->kept; }
static const void *weight_of(const struct routing_fact *fact) { return fact->weight; }

static const struct routing_fact *whole_of(const struct record *record, const struct rank_record *rank, const struct routing_fact *fact, struct arena *arena)
{
    const struct layout *layout = &record->config.layout;
    int cp = layout_cp(layout), tp = layout_slices_sequences(layout) ? layout->tp : 1, count = cp * tp;
    size_t experts = (size_t)fact->experts, top_k = (size_t)fact->top_k;
    int64_t tokens = 0, seq = record->config.model.seq;
    if (!is_cut(record)) return fact;
    if (rank->cp != 0 || (tp > 1 && rank->tp != 0)) return NULL;
    struct slice *slices = arena_alloc(arena, (size_t)count * sizeof *slices);
    for (int m = 0; m < count; m++) {
        slices[m] = same_fact(record, rank, fact, m / tp, tp > 1 ? m % tp : rank->tp);
        if (!slices[m].fact || !slices[m].fact->whole) return NULL;
        tokens += slices[m].fact->tokens;
    }
    if (tokens % seq != 0) return NULL;
    struct routing_fact *whole = arena_alloc(arena, sizeof *whole);
    *whole = *fact;
    whole->tokens = tokens;
    whole->positions = NULL;
    int64_t *cell_first = arena_alloc(arena, (size_t)(fact->cells + 1) * sizeof *cell_first), own = rows_of(record, rank);
    for (int c = 0; c <= fact->cells; c++) cell_first[c] = fact->cell_first[c] / own * seq;
    whole->cell_first = cell_first;
    whole->logits = put_together(record, slices, count, tokens, experts * sizeof(double), logits_of, arena);
    whole->score = put_together(record, slices, count, tokens, experts * sizeof(double), score_of, arena);
    whole->chosen = put_together(record, slices, count, tokens, top_k * sizeof(int32_t), chosen_of, arena);
    whole->kept = put_together(record, slices, count, tokens, top_k, kept_of, arena);
    whole->weight = put_together(record, slices, count, tokens, top_k * sizeof(double), weight_of, arena);
    if (!fact->aux) return whole;
    double *aux = arena_zalloc(arena, (size_t)fact->cells * sizeof *aux), *z = arena_zalloc(arena, (size_t)fact->cells * sizeof *z);
    for (int m = 0; m < count; m++) {
        for (int c = 0; c < fact->cells; c++) {
            aux[c] += slices[m].fact->aux[c];
            z[c] += slices[m].fact->z[c];
        }
    }
    whole->aux = aux;
    whole->z = z;
    return whole;
}

/* All facts, or whole micro-batches. */
static void each(const struct evidence *e, struct check_output *output, routing_visit *visit, bool whole)
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
                const bool *of_step = padding + step * batch * seq;
                if (fact->step != step) continue;
                struct arena_mark mark = arena_mark(arena);
                const struct routing_fact *seen = whole ? whole_of(record, rank, fact, arena) : fact;
                if (seen) visit(e, output, rank, seen, whole ? of_step + fact->first_sequence * seq : padding_of(record, rank, fact, of_step, arena));
                arena_release(arena, mark);
            }
        }
    }
    arena_free(arena);
}

void routing_each(const struct evidence *e, struct check_output *output, routing_visit *visit)
{
    each(e, output, visit, false);
}

void routing_each_whole(const struct evidence *e, struct check_output *output, routing_visit *visit)
{
    each(e, output, visit, true);
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
                bool larger = isnan(own) ? !isnan(other) : other > own, equal = other == own || (isnan(other) && isnan(own)); /* what is no number comes last */
                before += policy == MOE_DROP_POSITION ? n < i : larger || (equal && n < i);
            }
            ret[i] = before < room;
        }
    }
}

void routing_kept_by_choice(const struct moe_config *moe, const struct routing_fact *fact, bool *ret)
{
    int k = moe->top_k;
    for (int c = 0; c < fact->cells; c++) {
        int64_t first = fact->cell_first[c] * k, end = fact->cell_first[c + 1] * k, room = routing_capacity(moe, fact, c);
        for (int64_t i = first; i < end; i++) {
            int64_t before = 0;
            for (int64_t n = first; n < end; n++) before += fact->chosen[n] == fact->chosen[i] && (n % k < i % k || (n % k == i % k && n < i));
            ret[i] = before < room;
        }
    }
}
