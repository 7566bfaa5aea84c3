/* context_vary_gradient: one token's cotangent alone, and the derivative along a direction. */
#include "scenarios/context_vary.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/random.h"

struct member_errors { double dq, dk, dv; int64_t leaks, leak_position; };

/* Errors over the own rows of a rank, against the reference at the positions of rank `as`; of the rows that both have. */
static double error_as(const struct vary *w, const struct record *record, int rank, int as, const double *mine, const double *due, const double *terms, int64_t heads)
{
    const struct attention_part *p = record->rank[rank].attention, *q = record->rank[as].attention;
    double difference = 0, norm = 0, largest = 0;
    int64_t width = heads * w->inputs->head_dim;
    int64_t rows = p->rows < q->rows ? p->rows : q->rows;
    if (rows == 0) return p->rows == q->rows ? 0 : INFINITY;
    for (int64_t at = 0; at < p->batch * rows; at++) {
        int64_t i = at / rows * p->rows + at % rows, from = at / rows * q->rows + at % rows, sequence = p->first_sequence + at / rows;
        if (context_is_joint(&w->config, q->positions[from])) continue;
        for (int64_t h = 0; terms && h < heads; h++) {
            double term = terms[(sequence * w->inputs->seq + q->positions[from]) * heads + h];
            largest += term * term;
        }
        for (int64_t j = 0; j < width; j++) {
            double should = due[(sequence * w->inputs->seq + q->positions[from]) * width + j], d = mine[i * width + j] - should;
            difference += d * d;
            norm += should * should;
        }
    }
    if (!isfinite(difference)) return INFINITY;
    norm = fmax(norm, largest / 256);
    return difference == 0 ? 0 : norm == 0 ? INFINITY : sqrt(difference / norm);
}

static void count_leaks(const struct vary *w, struct gradient_pass *pass, const struct record *record, int rank)
{
    const struct attention_part *p = record->rank[rank].attention;
    int64_t width = w->inputs->kv_heads * w->inputs->head_dim;
    for (int64_t i = 0; i < p->batch * p->rows; i++) {
        int64_t sequence = p->first_sequence + i / p->rows, key = p->positions[i];
        if (sequence == pass->sequence && attention_visible(&w->config, vary_documents(w->inputs, sequence), pass->token, key)) continue;
        bool zero = true;
        for (int64_t j = 0; j < width; j++) zero = zero && p->dk[i * width + j] == 0 && p->dv[i * width + j] == 0;
        if (zero || pass->leaks++ > 0) continue;
        pass->leak_rank = rank;
        pass->leak_position = key;
    }
}

static void vary_token(struct vary *w, struct gradient_pass *pass)
{
    const struct attention_inputs_data *in = w->inputs;
    int64_t wide = in->heads * in->head_dim, at = (pass->sequence * in->seq + pass->token) * wide;
    struct attention_inputs_data *changed = attention_inputs_copy(in);
    memset(changed->d_out, 0, (size_t)(in->sequences * in->seq * wide) * sizeof(double));
    memcpy(changed->d_out + at, in->d_out + at, (size_t)wide * sizeof(double));
    struct vary_due due = vary_reference(w, &w->config, changed, true);
    struct record *record = w->stopped ? NULL : vary_run(w, &w->config, changed);
    pass->wrong_rank = pass->landed = pass->leak_rank = -1;
    if (!vary_is_whole(record)) pass->failed = true;
    int group = (int)(pass->sequence / w->config.attention.batch), from = group * w->members;
    for (int r = 0; !pass->failed && r < record->ranks; r++) count_leaks(w, pass, record, r);
    for (int m = 0; m < w->members && !pass->failed; m++) {
        const struct attention_part *p = record->rank[from + m].attention;
        double dq = error_as(w, record, from + m, from + m, p->dq, due.results.dq, due.results.dq_terms, in->heads);
        double dk = error_as(w, record, from + m, from + m, p->dk, due.results.dk, due.results.dk_terms, in->kv_heads), dv = error_as(w, record, from + m, from + m, p->dv, due.results.dv, NULL, in->kv_heads);
        if (dq > pass->dq) pass->dq_rank = from + m;
        pass->dq = fmax(pass->dq, dq);
        pass->dk = fmax(pass->dk, dk);
        pass->dv = fmax(pass->dv, dv);
        if (dk <= VARY_FP64_LIMIT && dv <= VARY_FP64_LIMIT) continue;
        int landed = -1;
        for (int c = 0; c < w->members; c++) {
            if (c != m && error_as(w, record, from + m, from + c, p->dv, due.results.dv, NULL, in->kv_heads) <= VARY_FP64_LIMIT) landed = c;
        }
        if (pass->wrong_ranks++ == 0) {
            pass->wrong_rank = from + m;
            pass->landed = landed < 0 ? -1 : from + landed;
        }
        pass->next += landed == (m + 1) % w->members;
        pass->mirrored += landed == (2 * pass->member - m + w->members) % w->members;
    }
    record_free(record);
    free(due.memory);
    attention_inputs_free(changed);
}

/* One token of each chunk of each group, in its middle; of more than GRADIENT_PASSES_MAX of them as many, evenly spread. */
void vary_gradients(struct vary *w)
{
    const struct attention_inputs_data *in = w->inputs;
    int64_t batch = w->config.attention.batch;
    int ranks = w->members * w->groups, passes = ranks < GRADIENT_PASSES_MAX ? ranks : GRADIENT_PASSES_MAX;
    for (int i = 0; i < passes && !w->stopped; i++) {
        int rank = (int)((int64_t)i * ranks / passes), member = rank % w->members;
        struct gradient_pass *pass = &w->v->gradient[w->v->gradient_count];
        int64_t sequence = rank / w->members * batch + i % batch, count = 0, seen = 0, token = -1;
        for (int64_t p = 0; p < in->seq; p++) count += vary_chunk(w, sequence, p) == member;
        for (int64_t p = 0; p < in->seq && token < 0; p++) {
            if (vary_chunk(w, sequence, p) == member && seen++ == count / 2) token = p;
        }
        if (token < 0) continue;
        *pass = (struct gradient_pass){.sequence = sequence, .token = token, .member = member};
        w->v->gradient_count++;
        vary_token(w, pass);
    }
}

/* sum d_out . out, of each row once: joint rows from their first holder. */
static double scalar_of(const struct vary *w, const struct record *record)
{
    const struct attention_inputs_data *in = w->inputs;
    int64_t width = in->heads * in->head_dim;
    double sum = 0;
    for (int r = 0; r < record->ranks; r++) {
        const struct attention_part *p = record->rank[r].attention;
        for (int64_t i = 0; i < p->batch * p->rows; i++) {
            if (context_is_joint(&w->config, p->positions[i]) && r % w->members != 0) continue;
            const double *d_out = in->d_out + ((p->first_sequence + i / p->rows) * in->seq + p->positions[i]) * width;
            for (int64_t j = 0; j < width; j++) sum += d_out[j] * p->out[i * width + j];
        }
    }
    return sum;
}

static void move(double *values, int64_t count, double by, uint64_t seed, const char *name)
{
    struct random_stream stream = random_stream(seed, name);
    for (int64_t i = 0; i < count; i++) values[i] += by * random_normal_at(&stream, (uint64_t)i);
}

static double moved_scalar(struct vary *w, double by, bool *ret_failed)
{
    struct attention_inputs_data *in = attention_inputs_copy(w->inputs);
    int64_t rows = in->sequences * in->seq, wide = rows * in->heads * in->head_dim, narrow = rows * in->kv_heads * in->head_dim;
    struct run_config config = w->config;
    config.attention.backward = false;
    move(in->q, wide, by, config.seed, "direction.q");
    move(in->k, narrow, by, config.seed, "direction.k");
    move(in->v, narrow, by, config.seed, "direction.v");
    struct record *record = vary_run(w, &config, in);
    double value = NAN;
    if (vary_is_whole(record)) value = scalar_of(w, record);
    else *ret_failed = true;
    record_free(record);
    attention_inputs_free(in);
    return value;
}

static void along(const struct vary *w, const struct record *record, const char *name, int kind, double *sum, double *terms)
{
    const struct attention_inputs_data *in = w->inputs;
    int64_t width = (kind == 0 ? in->heads : in->kv_heads) * in->head_dim;
    struct random_stream stream = random_stream(w->config.seed, name);
    for (int r = 0; r < record->ranks; r++) {
        const struct attention_part *p = record->rank[r].attention;
        const double *d = kind == 0 ? p->dq : kind == 1 ? p->dk : p->dv;
        for (int64_t i = 0; i < p->batch * p->rows; i++) {
            int64_t at = ((p->first_sequence + i / p->rows) * in->seq + p->positions[i]) * width;
            for (int64_t j = 0; j < width; j++) {
                double term = d[i * width + j] * random_normal_at(&stream, (uint64_t)(at + j));
                *sum += term;
                *terms += term * term;
            }
        }
    }
}

/* A difference over a width of h errs by h^2 and by 2^-53 / h: h = 1e-5 leaves about 1e-10 of the largest terms. */
void vary_direction(struct vary *w, const struct record *base)
{
    struct direction_pass *d = &w->v->direction;
    const double h = 1e-5;
    bool failed = !vary_is_whole(base);
    if (failed) return;
    double up = moved_scalar(w, h, &failed), down = failed || w->stopped ? NAN : moved_scalar(w, -h, &failed);
    if (failed || w->stopped) return;
    double squares = 0;
    along(w, base, "direction.q", 0, &d->analytic, &squares);
    along(w, base, "direction.k", 1, &d->analytic, &squares);
    along(w, base, "direction.v", 2, &d->analytic, &squares);
    d->made = true;
    d->numeric = (up - down) / (2 * h);
    d->terms = sqrt(squares);
    d->error = fabs(d->analytic - d->numeric) / fmax(d->terms, 1e-300);
}

