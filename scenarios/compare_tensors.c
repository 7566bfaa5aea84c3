/* compare: gradients and parameters, put together from their shards. Sums of squares in fp64, rows ascending,
 * shard by shard in rank order. */
#include <math.h>
#include <stdlib.h>

#include "model/params.h"
#include "scenarios/compare.h"
#include "scenarios/ladder.h"

/* Facts of replica 0, by (kind, step, parameter): start[key] .. start[key+1]. */
struct piece { const struct tensor_fact *fact; int rank; };
struct tensor_index { int steps, params; size_t *start; struct piece *pieces; };

static size_t key_of(const struct tensor_index *index, enum tensor_kind kind, int step, int param)
{
    return ((size_t)kind * (size_t)(index->steps + 1) + (size_t)(step + 1)) * (size_t)index->params + (size_t)param;
}

static struct tensor_index index_new(const struct record *record)
{
    struct tensor_index index = {.steps = record->config.train.steps, .params = record->params.count};
    size_t keys = key_of(&index, TENSOR_PARAM, index.steps - 1, index.params - 1) + 1, total = 0;
    index.start = memory_zalloc((keys + 2) * sizeof *index.start);
    for (int pass = 0; pass < 2; pass++) {
        for (int r = 0; r < record->ranks; r++) {
            for (int i = 0; i < record->rank[r].tensors.count; i++) {
                const struct tensor_fact *fact = &record->rank[r].tensors.items[i];
                if (fact->replica != 0) continue;
                size_t key = key_of(&index, fact->kind, fact->step, fact->param);
                if (pass == 0) index.start[key + 2]++;
                else index.pieces[index.start[key + 1]++] = (struct piece){fact, r};
                total += pass == 0;
            }
        }
        if (pass) break;
        for (size_t k = 2; k < keys + 2; k++) index.start[k] += index.start[k - 1];
        index.pieces = memory_alloc((total + 1) * sizeof *index.pieces);
    }
    return index;
}

static void index_free(struct tensor_index *index)
{
    free(index->start);
    free(index->pieces);
}

/* The whole parameter as fp64. Returns the norm of the terms behind it; false in ret_any where no shard has it. */
static double put_together(const struct record *record, const struct tensor_index *index, size_t key,
                           const struct param *param, double *values, bool *ret_any)
{
    size_t count = (size_t)(param->rows * param->columns);
    double terms = 0;
    for (size_t i = 0; i < count; i++) values[i] = NAN;
    *ret_any = index->start[key + 1] > index->start[key];
    for (size_t p = index->start[key]; p < index->start[key + 1]; p++) {
        const struct tensor_fact *fact = index->pieces[p].fact;
        size_t first = (size_t)fact->first, length = (size_t)fact->elements;
        enum format storage = run_storage(&record->config);
        for (size_t i = 0; i < length; i++) {
            size_t at = facts_whole_element(record, fact, first + i);
            if (at < count) values[at] = format_get(fact->data, i, storage);
        }
        terms += fact->terms_norm * fact->terms_norm;
    }
    return sqrt(terms);
}

static double norm_of(const double *values, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += values[i] * values[i];
    return sqrt(sum);
}

/* Which ranks' rows differ, and who is worst. */
static void blame_ranks(struct comparison *c, struct difference *d, const struct tensor_index *index, size_t key,
                        const struct param *param, const double *a, const double *b, double denominator)
{
    size_t pieces = index->start[key + 1] - index->start[key];
    int *ranks = arena_alloc(c->arena, (pieces + 1) * sizeof *ranks);
    double worst = -1;
    for (size_t p = index->start[key]; p < index->start[key + 1]; p++) {
        const struct tensor_fact *fact = index->pieces[p].fact;
        size_t first = (size_t)fact->first, length = (size_t)fact->elements;
        double sum = 0;
        for (size_t k = first; k < first + length; k++) {
            size_t i = facts_whole_element(c->parallel, fact, k);
            sum += (a[i] - b[i]) * (a[i] - b[i]);
        }
        double error = sqrt(sum) / denominator;
        if (!(error <= worst)) {
            worst = error;
            d->rank = index->pieces[p].rank;
        }
        if (d->above_screen && !(error <= d->limit)) ranks[d->ranks_count++] = index->pieces[p].rank;
    }
    d->ranks = ranks;
}

static void compare_tensor(struct comparison *c, struct difference *d, const struct tensor_index *index_a, size_t key,
                           const struct param *param, const double *a, const double *b, double terms,
                           double terms_count, double allowance)
{
    size_t count = (size_t)(param->rows * param->columns);
    double difference = 0, product = 0, rest = 0, norm = norm_of(b, count);
    for (size_t i = 0; i < count; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        product += a[i] * b[i];
    }
    double denominator = fmax(norm, terms);
    /* A bias that starts at 0, and whose gradient underflowed in one run alone, is compared with what that can do to it. */
    if (denominator == 0) denominator = allowance;
    *d = (struct difference){.rank = -1, .ratio = product / (norm * norm)};
    for (size_t i = 0; i < count; i++) rest += (a[i] - d->ratio * b[i]) * (a[i] - d->ratio * b[i]);
    d->residual = sqrt(rest) / norm;
    difference_set(c, d, difference == 0 ? 0 : sqrt(difference) / denominator, terms_count, allowance == 0 ? 0 : allowance / denominator);
    d->size = denominator;
    if (difference != 0) blame_ranks(c, d, index_a, key, param, a, b, denominator);
}

/* What the observed differences of a raw gradient, and with momentum those of the steps before, can do to its
 * parameter in one update. velocity carries the momentum's share from step to step. */
static double update_allowance(const struct train_config *train, const double *a, const double *b, size_t count,
                               double *velocity)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        double by = fabs(a[i] - b[i]);
        if (train->optimizer == OPTIMIZER_ADAMW) by = fmin(2, 4 * by / (fabs(b[i]) + train->eps));
        sum += by * by;
    }
    *velocity = (train->optimizer == OPTIMIZER_SGD ? train->momentum : 0) * *velocity + sqrt(sum);
    return train->lr * *velocity;
}

void compare_tensors(struct comparison *c)
{
    const struct record *records[2] = {c->parallel, c->standalone};
    struct tensor_index index[2] = {index_new(c->parallel), index_new(c->standalone)};
    double *allowance = memory_zalloc((size_t)c->params * sizeof *allowance);
    double *velocity = memory_zalloc((size_t)c->params * sizeof *velocity);
    for (int p = 0; p < c->params; p++) {
        const struct param *param = &c->parallel->params.params[p];
        size_t count = (size_t)(param->rows * param->columns);
        double *values[2] = {memory_alloc((count + 1) * sizeof(double)), memory_alloc((count + 1) * sizeof(double))};
        for (int step = -1; step < c->steps; step++) {
            double grown = step + 2,
                   terms_count = facts_tokens(c->standalone, step < 0 ? 0 : step).positions * grown * grown;
            for (int kind = 0; kind < 2; kind++) {
                if (kind == TENSOR_GRADIENT && step >= 0 && comparison_left_out(records[0], step) && comparison_left_out(records[1], step)) continue;
                size_t key = key_of(&index[0], (enum tensor_kind)kind, step, p);
                double terms[2];
                bool any[2];
                for (int run = 0; run < 2; run++)
                    terms[run] = put_together(records[run], &index[run], key, param, values[run], &any[run]);
                if (!any[0] || !any[1]) continue;
                if (kind == TENSOR_GRADIENT)
                    allowance[p] +=
                        update_allowance(&c->parallel->config.train, values[0], values[1], count, &velocity[p]);
                struct difference *d = kind == TENSOR_GRADIENT ? &c->gradient[step * c->params + p]
                                                               : &c->param[(step + 1) * c->params + p];
                compare_tensor(c, d, &index[0], key, param, values[0], values[1], fmax(terms[0], terms[1]), terms_count,
                               kind == TENSOR_GRADIENT ? 0 : allowance[p]);
            }
        }
        free(values[0]);
        free(values[1]);
    }
    free(allowance);
    free(velocity);
    index_free(&index[0]);
    index_free(&index[1]);
}
