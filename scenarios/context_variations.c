/* context_variations: the passes, each with its own reference where it needs one. */
#include "scenarios/context_vary.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const flag_names[FLAG_KINDS] = {"causal", "window", "documents"};

int vary_chunk(const struct vary *w, int64_t sequence, int64_t position)
{
    return w->holder[sequence * w->inputs->seq + position];
}

const int32_t *vary_documents(const struct attention_inputs_data *in, int64_t sequence)
{
    return in->documents ? in->documents + sequence * in->seq : NULL;
}

struct record *vary_run(struct vary *w, const struct run_config *config, const struct attention_inputs_data *in)
{
    struct record *record = w->run(w->context, config, in, w->error);
    if (!record || record->outcome == MACHINE_STOPPED) w->stopped = true;
    if (record && record->outcome == MACHINE_STOPPED) {
        record_free(record);
        record = NULL;
    }
    return record;
}

bool vary_is_whole(const struct record *record)
{
    for (int r = 0; record && r < record->ranks; r++) {
        if (!record->rank[r].attention) return false;
    }
    return record && record->outcome == MACHINE_FINISHED;
}

bool vary_same_bits(const double *a, const double *b, size_t count)
{
    return !memcmp(a, b, count * sizeof *a);
}

struct vary_due vary_reference(struct vary *w, const struct run_config *config, const struct attention_inputs_data *in, bool gradients)
{
    struct vary_due due = {0};
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
                                              at + 2 * wide + lse + 2 * narrow + in->heads, at + 2 * wide + 2 * lse + 2 * narrow + in->heads, at + 2 * wide + 2 * lse + 2 * narrow + of_keys + in->heads, NULL, NULL, NULL, NULL, NULL, NULL};
    struct run_config single = attention_single(config);
    attention_reference(&single, ops, in, gradients, &due.results);
    return due;
}

/* ---- mass ---- */

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

/* Blocks of a row that weigh the same whatever is due: the own one, which may have the sink too, only where there is no sink. */
static void add_blocks(const struct mass *m, int rank, int members, int inner /* members whose chunks come as one block: usp */, bool sinks, const double *got, const double *due, double *count)
{
    double least = INFINITY, most = -INFINITY, sum = 0;
    int seen = 0, own = rank % members / inner;
    for (int c = 0; c < members / inner; c++) {
        bool joint = c == own && m->chunks > members;
        double total = joint ? got[members] : 0, should = joint ? due[members] : 0;
        for (int i = c * inner; i < (c + 1) * inner; i++) total += got[i], should += due[i];
        if (should < 1e-9 || (c == own && sinks)) continue;
        least = fmin(least, total);
        most = fmax(most, total);
        sum += total;
        seen++;
    }
    if (seen < 2) return;
    m->block_total[rank] += sum / seen;
    m->block_spread[rank] = fmax(m->block_spread[rank], isfinite(sum) ? most - least : INFINITY);
    count[rank]++;
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

/* Over the ranks that get other weights than due; over all where none does. */
static struct fit fit_of_wrong(const struct mass *m, const struct fit *fits, int ranks)
{
    struct fit of[2] = {0};
    for (int r = 0; r < ranks; r++) {
        bool wrong = false;
        for (int c = 0; c < m->chunks; c++) wrong = wrong || m->worst[r * m->chunks + c] > 1e-10;
        for (int i = 0; i < (wrong ? 2 : 1); i++) of[i] = (struct fit){of[i].xx + fits[r].xx, of[i].xy + fits[r].xy, of[i].yy + fits[r].yy, of[i].count + fits[r].count};
    }
    return of[of[1].count > 0];
}

static void set_one_hot(const struct vary *w, struct attention_inputs_data *in, int first)
{
    for (int64_t i = 0; i < in->sequences * in->seq; i++) {
        int column = w->holder[i] - first;
        for (int64_t g = 0; g < in->kv_heads; g++) {
            double *row = in->v + (i * in->kv_heads + g) * in->head_dim;
            for (int64_t d = 0; d < in->head_dim; d++) row[d] = d == column;
        }
    }
}

static void vary_mass(struct vary *w)
{
    const struct attention_inputs_data *in = w->inputs;
    struct mass *m = &w->v->mass;
    int ranks = w->members * w->groups, chunks = w->chunks;
    struct run_config config = w->config;
    config.attention.backward = false;
    const struct context_config *context = &w->config.layout.context;
    int inner = !strcmp(context->method, "usp") && context->ulysses > 1 ? context->ulysses : 1;
    m->chunks = chunks;
    m->exponent = m->misfit = NAN;
    double **lists[] = {&m->got, &m->due, &m->worst, &m->multiple, &m->spread}, *count = arena_zalloc(w->v->arena, (size_t)(ranks * chunks) * sizeof *count);
    for (int i = 0; i < 5; i++) *lists[i] = arena_zalloc(w->v->arena, (size_t)(ranks * chunks) * sizeof(double));
    m->total = arena_zalloc(w->v->arena, (size_t)ranks * sizeof(double));
    m->block_total = arena_zalloc(w->v->arena, (size_t)ranks * sizeof(double));
    m->block_spread = arena_zalloc(w->v->arena, (size_t)ranks * sizeof(double));
    double *seen = arena_zalloc(w->v->arena, (size_t)ranks * sizeof *seen);
    m->total_due = arena_zalloc(w->v->arena, (size_t)ranks * sizeof(double));
    struct attention_inputs_data *changed = attention_inputs_copy(in);
    struct fit *fits = arena_zalloc(w->v->arena, (size_t)ranks * sizeof *fits), fit = {0};
    int64_t width = in->head_dim;
    for (int first = 0; first < chunks && !w->stopped && !m->failed; first += (int)width) {
        int here = chunks - first < width ? chunks - first : (int)width;
        set_one_hot(w, changed, first);
        struct vary_due due = vary_reference(w, &config, changed, false);
        struct record *record = w->stopped ? NULL : vary_run(w, &config, changed);
        if (!vary_is_whole(record)) m->failed = true;
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
                fit_row(m, &fits[r], got, should);
                add_multiples(m, r, r % w->members, got, should, count);
                add_blocks(m, r, w->members, inner, in->sinks != NULL, got, should, seen);
            }
        }
        record_free(record);
        free(due.memory);
    }
    close_multiples(m, ranks, count);
    fit = fit_of_wrong(m, fits, ranks);
    for (int r = 0; r < ranks; r++) {
        m->block_total[r] = seen[r] > 0 ? m->block_total[r] / seen[r] : NAN;
        if (!(seen[r] > 0)) m->block_spread[r] = NAN;
    }
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

static void compare_lse(struct vary *w, struct lse_pass *pass, const struct run_config *config, const struct attention_inputs_data *in)
{
    struct vary_due due = vary_reference(w, config, in, false);
    struct record *record = w->stopped ? NULL : vary_run(w, config, in);
    pass->finite = true;
    pass->rank = -1;
    if (!vary_is_whole(record)) pass->failed = true;
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

static void vary_lse(struct vary *w)
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
    *masked = (struct lse_pass){.what = "rows of padding that see nothing", .limit = VARY_FP64_LIMIT};
    compare_lse(w, masked, &config, changed);
    attention_inputs_free(changed);
}

/* ---- flags ---- */

static double distance(const struct vary *w, const struct record *record, const double *due, const struct record *other, bool *ret_equal, double *ret_of_rank /* [ranks] or NULL */)
{
    int64_t width = w->inputs->heads * w->inputs->head_dim;
    double difference = 0, norm = 0;
    *ret_equal = true;
    for (int r = 0; r < record->ranks; r++) {
        const struct attention_part *p = record->rank[r].attention;
        double difference_before = difference, norm_before = norm;
        for (int64_t i = 0; i < p->batch * p->rows; i++) {
            const double *should = other ? other->rank[r].attention->out + i * width : due + ((p->first_sequence + i / p->rows) * w->inputs->seq + p->positions[i]) * width;
            *ret_equal = *ret_equal && vary_same_bits(p->out + i * width, should, (size_t)width);
            for (int64_t j = 0; j < width; j++) {
                double d = p->out[i * width + j] - should[j];
                difference += d * d;
                norm += should[j] * should[j];
            }
        }
        double of_rank = difference - difference_before;
        if (ret_of_rank) ret_of_rank[r] = !isfinite(of_rank) ? INFINITY : of_rank == 0 ? 0 : sqrt(of_rank) / fmax(sqrt(norm - norm_before), 1e-300);
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

static void vary_flag(struct vary *w, enum flag_kind kind, const struct record *base)
{
    struct flag_pass *pass = &w->v->flag[kind];
    struct run_config config = w->config;
    config.attention.backward = false;
    struct attention_inputs_data *changed = attention_inputs_copy(w->inputs);
    turn(&config, changed, kind, pass);
    pass->made = true;
    pass->refused = !attention_allowed(&config, pass->why);
    if (!pass->refused) {
        struct vary_due due = vary_reference(w, &config, changed, false), was = vary_reference(w, &w->config, w->inputs, false);
        struct record *record = w->stopped ? NULL : vary_run(w, &config, changed);
        pass->failed = !vary_is_whole(record) || !vary_is_whole(base);
        if (!pass->failed) {
            bool equal, moved_not;
            int64_t count = w->inputs->sequences * w->inputs->seq * w->inputs->heads * w->inputs->head_dim;
            double difference = 0, norm = 0;
            pass->of_rank = arena_zalloc(w->v->arena, (size_t)record->ranks * sizeof *pass->of_rank);
            pass->error = distance(w, record, due.results.out, NULL, &equal, pass->of_rank);
            for (int64_t i = 0; i < count; i++) {
                difference += (due.results.out[i] - was.results.out[i]) * (due.results.out[i] - was.results.out[i]);
                norm += was.results.out[i] * was.results.out[i];
            }
            pass->due = sqrt(difference / fmax(norm, 1e-300));
            if (same_rows(record, base)) {
                pass->got = distance(w, record, NULL, base, &moved_not, NULL);
                pass->ignored = pass->due > VARY_FP64_LIMIT && pass->got == 0;
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
static void vary_alone(struct vary *w)
{
    struct run_config config = attention_single(&w->config);
    bool equal;
    w->v->alone = NAN;
    if (w->members == 1) return;
    config.attention.backward = false;
    struct vary_due due = vary_reference(w, &config, w->inputs, false);
    struct record *record = w->stopped ? NULL : vary_run(w, &config, w->inputs);
    if (vary_is_whole(record)) w->v->alone = distance(w, record, due.results.out, NULL, &equal, NULL);
    record_free(record);
    free(due.memory);
}

/* ---- all of it ---- */

static void find_holders(struct vary *w)
{
    const struct attention_inputs_data *in = w->inputs;
    w->holder = arena_alloc(w->v->arena, (size_t)(in->sequences * in->seq + 1) * sizeof *w->holder);
    for (int64_t b = 0; b < in->sequences; b++) {
        int *of = w->holder + b * in->seq;
        context_holders(&w->config, vary_documents(in, b), of);
        for (int64_t p = 0; p < in->seq; p++) of[p] = of[p] < 0 ? w->members : of[p];
    }
}

struct context_variations *context_variations_new(const struct run_config *config, const struct attention_inputs_data *inputs, unsigned which,
                                                  context_runner *run, void *context, const struct train_options *options, struct error *error)
{
    struct arena *arena = arena_new("context variations", false);
    struct context_variations *v = arena_zalloc(arena, sizeof *v);
    v->arena = arena;
    struct vary w = {.config = *config, .inputs = inputs, .run = run, .context = context, .options = options, .v = v, .members = layout_cp(&config->layout),
                     .groups = config->layout.dp_replicate, .error = error};
    w.config.precision = precision_of(FORMAT_FP64);
    w.chunks = w.members + (config->attention.joint > 0);
    find_holders(&w);
    struct run_config forward = w.config;
    forward.attention.backward = false;
    bool needs_base = which & (VARY_INFLUENCE | VARY_FLAGS);
    struct record *base = needs_base ? vary_run(&w, &forward, inputs) : NULL;
    if (which & VARY_INFLUENCE && !w.stopped) vary_influence(&w, &v->value_rows, base, false);
    if (which & VARY_INFLUENCE && !w.stopped) vary_influence(&w, &v->key_rows, base, true);
    v->alone = NAN;
    if (which & VARY_MASS && !w.stopped) vary_mass(&w);
    if (which & VARY_MASS && !w.stopped) vary_alone(&w);
    if (which & VARY_LSE && !w.stopped) vary_lse(&w);
    if (which & VARY_GRADIENT && config->attention.backward && !w.stopped) {
        vary_gradients(&w);
        struct record *whole = w.stopped ? NULL : vary_run(&w, &w.config, inputs);
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
