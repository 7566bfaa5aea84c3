/* context_variations: the passes, each with its own reference where it needs one. */
#include "scenarios/context_variations.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/random.h"

enum { EXHAUSTIVE_KEYS = 32, KEYS_A_CHUNK = 3 };
static const double fp64_limit = 1e-12;
const char *const flag_names[FLAG_KINDS] = {"causal", "window", "documents"};

struct work {
    struct run_config config;              /* fp64 */
    const struct attention_inputs_data *inputs;
    context_runner *run; void *context;
    const struct train_options *options;
    struct context_variations *v;
    int members, groups, chunks;
    int *holder;                           /* [sequences, seq]: member, or `members` for joint rows */
    struct error *error;
    bool stopped;
};

static int chunk_of(const struct work *w, int64_t sequence, int64_t position)
{
    return w->holder[sequence * w->inputs->seq + position];
}

static const int32_t *documents_of(const struct attention_inputs_data *in, int64_t sequence)
{
    return in->documents ? in->documents + sequence * in->seq : NULL;
}

/* NULL: stopped or an error (w->stopped). A run that does not finish is a record all the same. */
static struct record *run_of(struct work *w, const struct run_config *config, const struct attention_inputs_data *in)
{
    struct record *record = w->run(w->context, config, in, w->error);
    if (!record || record->outcome == MACHINE_STOPPED) w->stopped = true;
    if (record && record->outcome == MACHINE_STOPPED) {
        record_free(record);
        record = NULL;
    }
    return record;
}

static bool is_whole(const struct record *record)
{
    for (int r = 0; record && r < record->ranks; r++) {
        if (!record->rank[r].attention) return false;
    }
    return record && record->outcome == MACHINE_FINISHED;
}

/* ---- influence ---- */

static bool same_bits(const double *a, const double *b, size_t count)
{
    return !memcmp(a, b, count * sizeof *a);
}

static void note_pair(struct influence *f, struct influence_cell *cell, int64_t sequence, int64_t query, int64_t key, bool due, bool changed)
{
    f->missing_behind += due && !changed && key > query;
    cell->due += due;
    cell->changed += changed;
    if (due == changed) return;
    if (cell->missing + cell->extra == 0) {
        cell->query = query;
        cell->key = key;
        cell->sequence = sequence;
    }
    cell->missing += due;
    cell->extra += changed;
}

static void note_extra(const struct work *w, struct influence *f, int64_t sequence, int64_t query, int64_t key)
{
    const struct model_config *m = &w->config.model;
    const int32_t *documents = documents_of(w->inputs, sequence);
    int64_t apart = query > key ? query - key : key - query;
    f->extra_behind += m->causal && key > query;
    f->extra_window += m->window > 0 && apart >= m->window;
    f->extra_documents += documents && documents[query] != documents[key];
}

static void compare_influence(const struct work *w, struct influence *f, const struct record *base, const struct record *record, int64_t sequence, int64_t key)
{
    size_t width = (size_t)(w->inputs->heads * w->inputs->head_dim);
    int from = chunk_of(w, sequence, key);
    int64_t *seen = memory_zalloc((size_t)(2 * f->chunks) * sizeof *seen), *unseen = seen + f->chunks; /* by queries of each chunk that may see it */
    for (int r = 0; r < record->ranks; r++) {
        const struct attention_part *before = base->rank[r].attention, *after = record->rank[r].attention;
        for (int64_t i = 0; i < after->batch * after->rows; i++) {
            bool changed = !same_bits(before->out + (size_t)i * width, after->out + (size_t)i * width, width);
            int64_t here = after->first_sequence + i / after->rows, query = after->positions[i];
            if (here != sequence) {
                f->foreign_group += changed && here / after->batch != sequence / after->batch;
                if (changed && f->foreign++ == 0) f->foreign_sequence = here;
                continue;
            }
            bool due = attention_visible(&w->config, documents_of(w->inputs, sequence), query, key);
            int to = chunk_of(w, sequence, query);
            f->elsewhere += changed && query != key;
            seen[to] += due && changed;
            unseen[to] += due && !changed;
            note_pair(f, &f->cells[to * f->chunks + from], sequence, query, key, due, changed);
            if (changed && !due) note_extra(w, f, sequence, query, key);
        }
    }
    for (int c = 0; c < f->chunks; c++) f->partly += seen[c] > 0 && unseen[c] > 0;
    free(seen);
}

static void vary_row(struct work *w, struct influence *f, const struct record *base, bool keys, int64_t sequence, int64_t key)
{
    struct attention_inputs_data changed = *w->inputs; /* its arrays are put back below */
    int64_t width = w->inputs->kv_heads * w->inputs->head_dim;
    double *row = (keys ? changed.k : changed.v) + (sequence * w->inputs->seq + key) * width;
    double *was = memory_alloc((size_t)(width + 1) * sizeof *was);
    memcpy(was, row, (size_t)width * sizeof *was);
    for (int64_t j = 0; j < width; j++) row[j] = NAN;
    struct run_config config = w->config;
    config.attention.backward = false;
    struct record *record = run_of(w, &config, &changed);
    if (is_whole(record)) compare_influence(w, f, base, record, sequence, key);
    else f->failed = true;
    record_free(record);
    memcpy(row, was, (size_t)width * sizeof *was);
    free(was);
    f->keys++;
}

/* All keys of a short sequence; of a long one the first, one in the middle and the last of each chunk. */
static void vary_influence(struct work *w, struct influence *f, const struct record *base, bool keys)
{
    const struct attention_inputs_data *in = w->inputs;
    f->chunks = w->chunks;
    f->cells = arena_zalloc(w->v->arena, (size_t)(w->chunks * w->chunks) * sizeof *f->cells);
    f->exhaustive = in->seq <= EXHAUSTIVE_KEYS;
    if (!is_whole(base)) {
        f->failed = true;
        return;
    }
    for (int64_t key = 0; f->exhaustive && key < in->seq && !w->stopped; key++) vary_row(w, f, base, keys, key % in->sequences, key);
    if (f->exhaustive) return;
    for (int chunk = 0; chunk < w->chunks; chunk++) {
        int64_t sequence = chunk % in->sequences, count = 0, at = 0;
        for (int64_t key = 0; key < in->seq; key++) count += chunk_of(w, sequence, key) == chunk;
        int64_t taken[KEYS_A_CHUNK] = {0, count / 2, count - 1};
        for (int64_t key = 0; key < in->seq && !w->stopped; key++) {
            if (chunk_of(w, sequence, key) != chunk) continue;
            bool take = false;
            for (int i = 0; i < KEYS_A_CHUNK; i++) take = take || at == taken[i];
            if (take) vary_row(w, f, base, keys, sequence, key);
            at++;
        }
    }
}

/* ---- mass ---- */

/* Results of the reference on these inputs, forward alone. */
struct due { struct attention_results results; void *memory; };

static struct due reference_of(struct work *w, const struct run_config *config, const struct attention_inputs_data *in, bool gradients)
{
    struct due due = {0};
    const struct ops *ops = ops_get(FORMAT_FP64, w->options->cpu_path, "fixed", w->error);
    if (!ops) {
        w->stopped = true;
        return due;
    }
    size_t rows = (size_t)(in->sequences * in->seq), wide = rows * (size_t)(in->heads * in->head_dim), narrow = rows * (size_t)(in->kv_heads * in->head_dim);
    size_t lse = rows * (size_t)in->heads, of_keys = rows * (size_t)in->kv_heads, total = 2 * wide + 2 * lse + 2 * narrow + of_keys + 2 * (size_t)in->heads + 1;
    double *at = memory_zalloc(total * sizeof *at);
    due.memory = at;
    due.results = (struct attention_results){at, at + wide, at + wide + lse, at + 2 * wide + lse, at + 2 * wide + lse + narrow, at + 2 * wide + lse + 2 * narrow,
                                              at + 2 * wide + lse + 2 * narrow + in->heads, at + 2 * wide + 2 * lse + 2 * narrow + in->heads, at + 2 * wide + 2 * lse + 2 * narrow + of_keys + in->heads, NULL};
    struct run_config single = attention_single(config);
    attention_reference(&single, ops, in, gradients, &due.results);
    return due;
}

/* Weights of a row against that of one chunk: multiples of what is due. */
static void add_multiples(const struct mass *m, int rank, int own, const double *got, const double *due, double *count)
{
    int first = due[own] > 1e-9 && got[own] > 1e-12 ? own : -1;
    for (int c = 0; c < m->chunks && first < 0; c++) first = due[c] > 1e-9 && got[c] > 1e-12 ? c : -1;
    for (int c = 0; c < m->chunks && first >= 0; c++) {
        int cell = rank * m->chunks + c;
        if (due[c] < 1e-9 || !(got[c] > 1e-12)) continue;
        double x = log(got[c] / got[first]) - log(due[c] / due[first]);
        m->multiple[cell] += x;
        m->spread[cell] += x * x;
        count[cell]++;
    }
}

static void close_multiples(const struct mass *m, int ranks, const double *count)
{
    for (int i = 0; i < ranks * m->chunks; i++) {
        double mean = count[i] > 0 ? m->multiple[i] / count[i] : NAN;
        m->spread[i] = count[i] > 0 ? sqrt(fmax(0, m->spread[i] / count[i] - mean * mean)) : NAN;
        m->multiple[i] = exp(mean);
    }
}

/* For the fit: logs of weights of chunks, as due and as got, a row's differences from that of its first chunk. */
struct fit { double xx, xy, yy; int64_t count; };

static void fit_row(const struct mass *m, struct fit *fit, const double *got, const double *due)
{
    int first = -1;
    for (int c = 0; c < m->chunks; c++) {
        if (due[c] < 1e-9 || !(got[c] > 1e-12)) continue;
        if (first < 0) {
            first = c;
            continue;
        }
        double x = log(due[c] / due[first]), y = log(got[c] / got[first]);
        fit->xx += x * x;
        fit->xy += x * y;
        fit->yy += y * y;
        fit->count++;
    }
}

static void set_one_hot(const struct work *w, struct attention_inputs_data *in, int first)
{
    for (int64_t i = 0; i < in->sequences * in->seq; i++) {
        int column = w->holder[i] - first;
        for (int64_t g = 0; g < in->kv_heads; g++) {
            double *row = in->v + (i * in->kv_heads + g) * in->head_dim;
            for (int64_t d = 0; d < in->head_dim; d++) row[d] = d == column;
        }
    }
}

static void vary_mass(struct work *w)
{
    const struct attention_inputs_data *in = w->inputs;
    struct mass *m = &w->v->mass;
    int ranks = w->members * w->groups, chunks = w->chunks;
    struct run_config config = w->config;
    config.attention.backward = false;
    m->chunks = chunks;
    m->exponent = m->misfit = NAN;
    double **lists[] = {&m->got, &m->due, &m->worst, &m->multiple, &m->spread}, *count = arena_zalloc(w->v->arena, (size_t)(ranks * chunks) * sizeof *count);
    for (int i = 0; i < 5; i++) *lists[i] = arena_zalloc(w->v->arena, (size_t)(ranks * chunks) * sizeof(double));
    m->total = arena_zalloc(w->v->arena, (size_t)ranks * sizeof(double));
    m->total_due = arena_zalloc(w->v->arena, (size_t)ranks * sizeof(double));
    struct attention_inputs_data *changed = attention_inputs_copy(in);
    struct fit fit = {0};
    int64_t width = in->head_dim;
    for (int first = 0; first < chunks && !w->stopped && !m->failed; first += (int)width) {
        int here = chunks - first < width ? chunks - first : (int)width;
        set_one_hot(w, changed, first);
        struct due due = reference_of(w, &config, changed, false);
        struct record *record = w->stopped ? NULL : run_of(w, &config, changed);
        if (!is_whole(record)) m->failed = true;
        for (int r = 0; !m->failed && r < ranks; r++) {
            const struct attention_part *p = record->rank[r].attention;
            double rows = (double)(p->batch * p->rows * in->heads);
            for (int64_t i = 0; i < p->batch * p->rows * in->heads; i++) {
                int64_t row = i / in->heads, head = i % in->heads, sequence = p->first_sequence + row / p->rows;
                const double *got = p->out + i * width, *should = due.results.out + ((sequence * in->seq + p->positions[row]) * in->heads + head) * width;
                for (int c = 0; c < here; c++) {
                    int cell = r * chunks + first + c;
                    m->got[cell] += got[c] / rows;
                    m->due[cell] += should[c] / rows;
                    m->total[r] += got[c] / rows;
                    m->total_due[r] += should[c] / rows;
                    m->worst[cell] = fmax(m->worst[cell], isfinite(got[c]) ? fabs(got[c] - should[c]) : INFINITY);
                }
                if (chunks > width) continue;
                fit_row(m, &fit, got, should);
                add_multiples(m, r, r % w->members, got, should, count);
            }
        }
        record_free(record);
        free(due.memory);
    }
    close_multiples(m, ranks, count);
    if (fit.count > 0 && fit.xx > 0) {
        m->exponent = fit.xy / fit.xx;
        m->misfit = sqrt(fmax(0, fit.yy - fit.xy * fit.xy / fit.xx) / (double)fit.count);
    }
    attention_inputs_free(changed);
}

/* ---- lse ---- */

/* Over all pairs of rows of one sequence and head, seen or not. */
static double largest_logit(const struct attention_inputs_data *in)
{
    double largest = 0, scale = 1 / sqrt((double)in->head_dim);
    int64_t group = in->heads / in->kv_heads;
    for (int64_t i = 0; i < in->sequences * in->seq * in->heads; i++) {
        const double *q = in->q + i * in->head_dim;
        int64_t sequence = i / (in->seq * in->heads), g = i % in->heads / group;
        for (int64_t k = 0; k < in->seq; k++) {
            const double *key = in->k + ((sequence * in->seq + k) * in->kv_heads + g) * in->head_dim;
            double sum = 0;
            for (int64_t d = 0; d < in->head_dim; d++) sum += q[d] * key[d];
            largest = fmax(largest, fabs(sum) * scale);
        }
    }
    return largest > 0 ? largest : 1;
}

static void compare_lse(struct work *w, struct lse_pass *pass, const struct run_config *config, const struct attention_inputs_data *in)
{
    struct due due = reference_of(w, config, in, false);
    struct record *record = w->stopped ? NULL : run_of(w, config, in);
    pass->finite = true;
    pass->rank = -1;
    if (!is_whole(record)) pass->failed = true;
    for (int r = 0; !pass->failed && r < record->ranks; r++) {
        const struct attention_part *p = record->rank[r].attention;
        for (int64_t i = 0; i < p->batch * p->rows * in->heads; i++) {
            int64_t row = i / in->heads, head = i % in->heads, local = row % p->rows, sequence = p->first_sequence + row / p->rows, position = p->positions[row];
            double should = due.results.lse[(sequence * in->heads + head) * in->seq + position], lse = p->lse ? p->lse[(row / p->rows * in->heads + head) * p->rows + local] : should;
            double error = lse == should ? 0 : fabs(lse - should) / fmax(fabs(should), 1), out = 0, norm = 0;
            for (int64_t d = 0; d < in->head_dim; d++) {
                double a = p->out[i * in->head_dim + d], b = due.results.out[((sequence * in->seq + position) * in->heads + head) * in->head_dim + d];
                out += (a - b) * (a - b);
                norm += b * b;
            }
            out = out == 0 ? 0 : sqrt(out) / fmax(sqrt(norm), 1e-3);
            if (!isfinite(error) || !isfinite(out)) {
                pass->finite = false;
                error = INFINITY;
            }
            if ((error > pass->limit || out > pass->limit) && pass->rank < 0) {
                pass->rank = r;
                pass->sequence = sequence;
                pass->position = position;
            }
            pass->lse_error = fmax(pass->lse_error, error);
            pass->out_error = fmax(pass->out_error, out);
        }
    }
    record_free(record);
    free(due.memory);
}

static void vary_lse(struct work *w)
{
    struct attention_inputs_data *changed = attention_inputs_copy(w->inputs);
    const struct attention_inputs_data *in = w->inputs;
    struct run_config config = w->config;
    config.attention.backward = false;
    double factor = 1000 / largest_logit(in);
    for (int64_t i = 0; i < in->sequences * in->seq * in->heads * in->head_dim; i++) changed->q[i] *= factor;
    for (int64_t h = 0; in->sinks && h < in->heads; h++) changed->sinks[h] *= factor;
    struct lse_pass *large = &w->v->lse[w->v->lse_count++];
    *large = (struct lse_pass){.what = "logits up to 1,000 in magnitude", .limit = 1e-9}; /* a logit's own rounding, 1000 * 2^-53 * D, is an error of the weights */
    compare_lse(w, large, &config, changed);
    attention_inputs_free(changed);
    bool by_documents = !strcmp(w->config.layout.context.layout, "document");
    if (w->stopped || by_documents) return; /* there the layout follows the documents */
    char why[320];
    config.model.document_mask = true;
    if (!attention_allowed(&config, why)) return; /* a plug-in that takes no documents */
    changed = attention_inputs_copy(w->inputs);
    if (!changed->documents) attention_inputs_set_documents(changed, &config);
    for (int64_t i = 0; i < in->sequences * in->seq; i++) {
        if (i % in->seq >= in->seq - in->seq / 4 || i % in->seq == 1) changed->documents[i] = -1;
    }
    struct lse_pass *masked = &w->v->lse[w->v->lse_count++];
    *masked = (struct lse_pass){.what = "rows of padding that see nothing", .limit = fp64_limit};
    compare_lse(w, masked, &config, changed);
    attention_inputs_free(changed);
}

/* ---- gradients ---- */

struct member_errors { double dq, dk, dv; int64_t leaks, leak_position; };

/* Errors over the own rows of a rank, against the reference at the positions of rank `as`; of the rows that both have. */
static double error_as(const struct work *w, const struct record *record, int rank, int as, const double *mine, const double *due, const double *terms, int64_t heads)
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

static void count_leaks(const struct work *w, struct gradient_pass *pass, const struct record *record, int rank)
{
    const struct attention_part *p = record->rank[rank].attention;
    int64_t width = w->inputs->kv_heads * w->inputs->head_dim;
    for (int64_t i = 0; i < p->batch * p->rows; i++) {
        int64_t sequence = p->first_sequence + i / p->rows, key = p->positions[i];
        if (sequence == pass->sequence && attention_visible(&w->config, documents_of(w->inputs, sequence), pass->token, key)) continue;
        bool zero = true;
        for (int64_t j = 0; j < width; j++) zero = zero && p->dk[i * width + j] == 0 && p->dv[i * width + j] == 0;
        if (zero || pass->leaks++ > 0) continue;
        pass->leak_rank = rank;
        pass->leak_position = key;
    }
}

static void vary_token(struct work *w, struct gradient_pass *pass)
{
    const struct attention_inputs_data *in = w->inputs;
    int64_t wide = in->heads * in->head_dim, at = (pass->sequence * in->seq + pass->token) * wide;
    struct attention_inputs_data *changed = attention_inputs_copy(in);
    memset(changed->d_out, 0, (size_t)(in->sequences * in->seq * wide) * sizeof(double));
    memcpy(changed->d_out + at, in->d_out + at, (size_t)wide * sizeof(double));
    struct due due = reference_of(w, &w->config, changed, true);
    struct record *record = w->stopped ? NULL : run_of(w, &w->config, changed);
    pass->wrong_rank = pass->landed = pass->leak_rank = -1;
    if (!is_whole(record)) pass->failed = true;
    int group = (int)(pass->sequence / w->config.attention.batch), from = group * w->members;
    for (int m = 0; m < w->members && !pass->failed; m++) {
        const struct attention_part *p = record->rank[from + m].attention;
        double dq = error_as(w, record, from + m, from + m, p->dq, due.results.dq, due.results.dq_terms, in->heads);
        double dk = error_as(w, record, from + m, from + m, p->dk, due.results.dk, due.results.dk_terms, in->kv_heads), dv = error_as(w, record, from + m, from + m, p->dv, due.results.dv, NULL, in->kv_heads);
        count_leaks(w, pass, record, from + m);
        pass->dq = fmax(pass->dq, dq);
        pass->dk = fmax(pass->dk, dk);
        pass->dv = fmax(pass->dv, dv);
        if (dk <= fp64_limit && dv <= fp64_limit) continue;
        int landed = -1;
        for (int c = 0; c < w->members; c++) {
            if (c != m && error_as(w, record, from + m, from + c, p->dv, due.results.dv, NULL, in->kv_heads) <= fp64_limit) landed = c;
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

/* One token of each chunk, in its middle. */
static void vary_gradients(struct work *w)
{
    const struct attention_inputs_data *in = w->inputs;
    int passes = w->members < GRADIENT_PASSES_MAX ? w->members : GRADIENT_PASSES_MAX;
    for (int i = 0; i < passes && !w->stopped; i++) {
        int member = (int)((int64_t)i * w->members / passes);
        struct gradient_pass *pass = &w->v->gradient[w->v->gradient_count];
        int64_t sequence = i % in->sequences, count = 0, seen = 0, token = -1;
        for (int64_t p = 0; p < in->seq; p++) count += chunk_of(w, sequence, p) == member;
        for (int64_t p = 0; p < in->seq && token < 0; p++) {
            if (chunk_of(w, sequence, p) == member && seen++ == count / 2) token = p;
        }
        if (token < 0) continue;
        *pass = (struct gradient_pass){.sequence = sequence, .token = token, .member = member};
        w->v->gradient_count++;
        vary_token(w, pass);
    }
}

/* sum d_out . out, of each row once: joint rows from their first holder. */
static double scalar_of(const struct work *w, const struct record *record)
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

static double moved_scalar(struct work *w, double by, bool *ret_failed)
{
    struct attention_inputs_data *in = attention_inputs_copy(w->inputs);
    int64_t rows = in->sequences * in->seq, wide = rows * in->heads * in->head_dim, narrow = rows * in->kv_heads * in->head_dim;
    struct run_config config = w->config;
    config.attention.backward = false;
    move(in->q, wide, by, config.seed, "direction.q");
    move(in->k, narrow, by, config.seed, "direction.k");
    move(in->v, narrow, by, config.seed, "direction.v");
    struct record *record = run_of(w, &config, in);
    double value = NAN;
    if (is_whole(record)) value = scalar_of(w, record);
    else *ret_failed = true;
    record_free(record);
    attention_inputs_free(in);
    return value;
}

static void along(const struct work *w, const struct record *record, const char *name, int kind, double *sum, double *terms)
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
static void vary_direction(struct work *w, const struct record *base)
{
    struct direction_pass *d = &w->v->direction;
    const double h = 1e-5;
    bool failed = !is_whole(base);
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

/* ---- flags ---- */

static double distance(const struct work *w, const struct record *record, const double *due, const struct record *other, bool *ret_equal)
{
    int64_t width = w->inputs->heads * w->inputs->head_dim;
    double difference = 0, norm = 0;
    *ret_equal = true;
    for (int r = 0; r < record->ranks; r++) {
        const struct attention_part *p = record->rank[r].attention;
        for (int64_t i = 0; i < p->batch * p->rows; i++) {
            const double *should = other ? other->rank[r].attention->out + i * width : due + ((p->first_sequence + i / p->rows) * w->inputs->seq + p->positions[i]) * width;
            *ret_equal = *ret_equal && same_bits(p->out + i * width, should, (size_t)width);
            for (int64_t j = 0; j < width; j++) {
                double d = p->out[i * width + j] - should[j];
                difference += d * d;
                norm += should[j] * should[j];
            }
        }
    }
    if (!isfinite(difference)) return INFINITY;
    return difference == 0 ? 0 : sqrt(difference) / fmax(sqrt(norm), 1e-300);
}

static bool same_rows(const struct record *a, const struct record *b)
{
    for (int r = 0; r < a->ranks; r++) {
        if (a->rank[r].attention->rows != b->rank[r].attention->rows) return false;
        size_t rows = (size_t)(a->rank[r].attention->batch * a->rank[r].attention->rows);
        if (memcmp(a->rank[r].attention->positions, b->rank[r].attention->positions, rows * sizeof(int32_t))) return false;
    }
    return true;
}

static void turn(struct run_config *config, struct attention_inputs_data *in, enum flag_kind kind, struct flag_pass *pass)
{
    struct model_config *m = &config->model;
    if (kind == FLAG_CAUSAL) m->causal = pass->on = !m->causal;
    if (kind == FLAG_WINDOW) {
        pass->on = m->window == 0;
        m->window = pass->on ? m->seq / 3 + 1 : 0;
    }
    if (kind != FLAG_DOCUMENTS) return;
    pass->on = !in->documents;
    m->document_mask = pass->on;
    if (pass->on) {
        config->attention.documents_count = 2;
        config->attention.documents[0] = m->seq / 3 > 0 ? m->seq / 3 : 1;
        config->attention.documents[1] = m->seq - config->attention.documents[0];
        if (config->attention.documents[1] <= 0) config->attention.documents_count = 1;
    }
    attention_inputs_set_documents(in, config);
}

static void vary_flag(struct work *w, enum flag_kind kind, const struct record *base)
{
    struct flag_pass *pass = &w->v->flag[kind];
    struct run_config config = w->config;
    config.attention.backward = false;
    struct attention_inputs_data *changed = attention_inputs_copy(w->inputs);
    turn(&config, changed, kind, pass);
    pass->made = true;
    pass->refused = !attention_allowed(&config, pass->why);
    if (!pass->refused) {
        struct due due = reference_of(w, &config, changed, false), was = reference_of(w, &w->config, w->inputs, false);
        struct record *record = w->stopped ? NULL : run_of(w, &config, changed);
        pass->failed = !is_whole(record) || !is_whole(base);
        if (!pass->failed) {
            bool equal, moved_not;
            int64_t count = w->inputs->sequences * w->inputs->seq * w->inputs->heads * w->inputs->head_dim;
            double difference = 0, norm = 0;
            pass->error = distance(w, record, due.results.out, NULL, &equal);
            for (int64_t i = 0; i < count; i++) {
                difference += (due.results.out[i] - was.results.out[i]) * (due.results.out[i] - was.results.out[i]);
                norm += was.results.out[i] * was.results.out[i];
            }
            pass->due = sqrt(difference / fmax(norm, 1e-300));
            if (same_rows(record, base)) {
                pass->got = distance(w, record, NULL, base, &moved_not);
                pass->ignored = pass->due > fp64_limit && pass->got == 0;
            } else {
                pass->got = NAN;
            }
        }
        record_free(record);
        free(due.memory);
        free(was.memory);
    }
    attention_inputs_free(changed);
}

/* ---- one rank ---- */

/* The path of many ranks with one: no block to merge, nothing to wait for. */
static void vary_alone(struct work *w)
{
    struct run_config config = attention_single(&w->config);
    bool equal;
    w->v->alone = NAN;
    if (w->members == 1) return;
    config.attention.backward = false;
    struct due due = reference_of(w, &config, w->inputs, false);
    struct record *record = w->stopped ? NULL : run_of(w, &config, w->inputs);
    if (is_whole(record)) w->v->alone = distance(w, record, due.results.out, NULL, &equal);
    record_free(record);
    free(due.memory);
}

/* ---- all of it ---- */

static void find_holders(struct work *w)
{
    const struct attention_inputs_data *in = w->inputs;
    w->holder = arena_alloc(w->v->arena, (size_t)(in->sequences * in->seq + 1) * sizeof *w->holder);
    for (int64_t b = 0; b < in->sequences; b++) {
        int *of = w->holder + b * in->seq;
        context_holders(&w->config, documents_of(in, b), of);
        for (int64_t p = 0; p < in->seq; p++) of[p] = of[p] < 0 ? w->members : of[p];
    }
}

struct context_variations *context_variations_new(const struct run_config *config, const struct attention_inputs_data *inputs, unsigned which,
                                                  context_runner *run, void *context, const struct train_options *options, struct error *error)
{
    struct arena *arena = arena_new("context variations", false);
    struct context_variations *v = arena_zalloc(arena, sizeof *v);
    v->arena = arena;
    struct work w = {.config = *config, .inputs = inputs, .run = run, .context = context, .options = options, .v = v, .members = layout_cp(&config->layout),
                     .groups = config->layout.dp_replicate, .error = error};
    w.config.precision = precision_of(FORMAT_FP64);
    w.chunks = w.members + (config->attention.joint > 0);
    find_holders(&w);
    struct run_config forward = w.config;
    forward.attention.backward = false;
    bool needs_base = which & (VARY_INFLUENCE | VARY_FLAGS);
    struct record *base = needs_base ? run_of(&w, &forward, inputs) : NULL;
    if (which & VARY_INFLUENCE && !w.stopped) vary_influence(&w, &v->value_rows, base, false);
    if (which & VARY_INFLUENCE && !w.stopped) vary_influence(&w, &v->key_rows, base, true);
    v->alone = NAN;
    if (which & VARY_MASS && !w.stopped) vary_mass(&w);
    if (which & VARY_MASS && !w.stopped) vary_alone(&w);
    if (which & VARY_LSE && !w.stopped) vary_lse(&w);
    if (which & VARY_GRADIENT && config->attention.backward && !w.stopped) {
        vary_gradients(&w);
        struct record *whole = w.stopped ? NULL : run_of(&w, &w.config, inputs);
        if (!w.stopped) vary_direction(&w, whole);
        record_free(whole);
    }
    for (int kind = 0; which & VARY_FLAGS && kind < FLAG_KINDS && !w.stopped; kind++) vary_flag(&w, (enum flag_kind)kind, base);
    record_free(base);
    if (!w.stopped) return v;
    context_variations_free(v);
    return NULL;
}

void context_variations_free(struct context_variations *variations)
{
    if (variations) arena_free(variations->arena);
}
