/* test_kernels_attention: attention against its definition in fp64, and that bits depend on nothing they should not. */
#include "tests/kernels_support.h"
#include "tests/support/run_suite.h"

struct problem {
    int64_t batch, seq, heads, kv_heads, dim;
    bool causal;
    const int32_t *documents; /* [batch, seq] or NULL */
    double scale;             /* of q and k */
    /* Where set, keys are not the queries' positions: */
    int64_t keys;
    const int32_t *q_positions, *k_positions, *k_documents; /* [batch, seq], [batch, keys] */
    int64_t window;
    double softmax_scale;
    bool empty;               /* there are no keys */
};

static int64_t keys_of(const struct problem *p) { return p->empty ? 0 : p->keys ? p->keys : p->seq; }
static const int32_t *k_documents(const struct problem *p) { return p->k_documents ? p->k_documents : p->documents; }

static size_t q_count(const struct problem *p) { return (size_t)(p->batch * p->seq * p->heads * p->dim); }
static size_t k_count(const struct problem *p) { return (size_t)(p->batch * keys_of(p) * p->kv_heads * p->dim); }
static size_t lse_count(const struct problem *p) { return (size_t)(p->batch * p->heads * p->seq); }

enum { Q, K, V, D_O, O, LSE, DQ, DK, DV, BUFFERS };
struct buffers { void *at[BUFFERS]; };

static struct buffers inputs(const struct problem *p, enum format s)
{
    struct buffers b = {0};
    b.at[Q] = numbers(q_count(p), s, 1, p->scale), b.at[K] = numbers(k_count(p), s, 2, p->scale);
    b.at[V] = numbers(k_count(p), s, 3, 1), b.at[D_O] = numbers(q_count(p), s, 4, 1);
    b.at[O] = numbers(q_count(p), s, 5, 1), b.at[LSE] = numbers(lse_count(p), s, 6, 1);
    b.at[DQ] = numbers(q_count(p), s, 7, 1), b.at[DK] = numbers(k_count(p), s, 8, 1);
    b.at[DV] = numbers(k_count(p), s, 9, 1);
    return b;
}

static void buffers_free(struct buffers *b)
{
    for (int i = 0; i < BUFFERS; i++)
        free(b->at[i]);
}

static void run(const struct ops *ops, const struct problem *p, struct buffers *b)
{
    const enum format s = ops->storage;
    struct tensor t[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) {
        bool kv = i == K || i == V || i == DK || i == DV;
        t[i] = tensor_4d(b->at[i], s, p->batch, kv ? keys_of(p) : p->seq, kv ? p->kv_heads : p->heads, p->dim);
    }
    t[LSE] = tensor_3d(b->at[LSE], s, p->batch, p->heads, p->seq);
    const struct attention_view view = {.q_positions = p->q_positions, .k_positions = p->k_positions, .q_documents = p->documents,
                                        .k_documents = k_documents(p), .causal = p->causal, .window = p->window,
                                        .scale = p->softmax_scale};
    const size_t bytes = ops->attention_scratch(p->seq > keys_of(p) ? p->seq : keys_of(p), p->dim);
    char *memory = malloc(bytes + 1);
    memset(memory, 0xff, bytes + 1); /* NaNs: nothing may be read that was not written */
    ops->attention_forward(t[O], t[LSE], t[Q], t[K], t[V], &view, FORMAT_FP64, memory + 1);
    memset(memory, 0xff, bytes + 1);
    ops->attention_backward(t[DQ], t[DK], t[DV], t[D_O], t[Q], t[K], t[V], t[O], t[LSE], &view, FORMAT_FP64, memory + 1);
    free(memory);
}

static double norm(const double *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

static bool sees(const struct problem *p, int64_t b, int64_t i, int64_t j)
{
    const int64_t at = p->q_positions ? p->q_positions[b * p->seq + i] : i, of = p->k_positions ? p->k_positions[b * keys_of(p) + j] : j;
    const int32_t d = p->documents ? p->documents[b * p->seq + i] : 0, e = p->documents ? k_documents(p)[b * keys_of(p) + j] : 0;
    return (!p->causal || of <= at) && (p->window == 0 || llabs(at - of) < p->window) && d == e && d >= 0;
}

/* The definition in fp64, every sum as it comes; r[O], r[LSE], r[DQ], r[DK], r[DV] hold doubles. */
static struct buffers reference(const struct problem *p, const struct buffers *in, enum format s)
{
    struct buffers r = {0};
    r.at[O] = calloc(q_count(p) + 1, 8), r.at[DQ] = calloc(q_count(p) + 1, 8), r.at[LSE] = calloc(lse_count(p) + 1, 8);
    r.at[DK] = calloc(k_count(p) + 1, 8), r.at[DV] = calloc(k_count(p) + 1, 8);
    double *o = r.at[O], *lse = r.at[LSE], *dq = r.at[DQ], *dk = r.at[DK], *dv = r.at[DV];
    double *w = calloc((size_t)keys_of(p) + 1, 8), *dw = calloc((size_t)keys_of(p) + 1, 8);
    const double scale = p->softmax_scale != 0 ? p->softmax_scale : 1 / sqrt((double)p->dim);
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t h = 0; h < p->heads; h++)
            for (int64_t i = 0; i < p->seq; i++) {
                const size_t at = (size_t)(((b * p->seq + i) * p->heads + h) * p->dim), dim = (size_t)p->dim;
                const int64_t g = h / (p->heads / p->kv_heads);
                double most = -INFINITY, total = 0, mean = 0;
                for (int64_t j = 0; j < keys_of(p); j++) {
                    const size_t kv = (size_t)(((b * keys_of(p) + j) * p->kv_heads + g) * p->dim);
                    w[j] = dw[j] = 0;
                    for (size_t d = 0; d < dim; d++) {
                        w[j] += get(in->at[Q], at + d, s) * get(in->at[K], kv + d, s) * scale;
                        dw[j] += get(in->at[D_O], at + d, s) * get(in->at[V], kv + d, s);
                    }
                    w[j] = sees(p, b, i, j) ? w[j] : -INFINITY;
                    most = fmax(most, w[j]);
                }
                for (int64_t j = 0; j < keys_of(p); j++)
                    total += w[j] = w[j] == -INFINITY ? 0 : exp(w[j] - most);
                for (int64_t j = 0; j < keys_of(p); j++)
                    mean += (w[j] /= total > 0 ? total : 1) * dw[j];
                lse[(b * p->heads + h) * p->seq + i] = most + log(total);
                for (int64_t j = 0; j < keys_of(p); j++) {
                    const size_t kv = (size_t)(((b * keys_of(p) + j) * p->kv_heads + g) * p->dim);
                    for (size_t d = 0; d < dim; d++) {
                        const double ds = w[j] * (dw[j] - mean) * scale;
                        o[at + d] += w[j] * get(in->at[V], kv + d, s);
                        dv[kv + d] += w[j] * get(in->at[D_O], at + d, s);
                        dq[at + d] += ds * get(in->at[K], kv + d, s);
                        dk[kv + d] += ds * get(in->at[Q], at + d, s);
                    }
                }
            }
    free(w), free(dw);
    return r;
}

static void documents_fill(int32_t *documents, int64_t batch, int64_t seq, int kind)
{
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0; i < seq; i++) {
            int32_t *d = &documents[b * seq + i];
            if (kind == 1) /* runs of 19, shifted a row: what packing gives */
                *d = (int32_t)((b * 7 + i) / 19);
            else if (kind == 2) /* documents that come back, and padding */
                *d = i % 11 == 3 ? -1 : (int32_t)(i * i % 3);
            else /* nothing but padding in sequence 0; runs of 1, 2, 3, ... elsewhere */
                *d = b == 0 ? -1 : (int32_t)(sqrt((double)(8 * i + 1)) / 2);
        }
}

#define PROBLEM(b, s, h, g, d, c, by) {.batch = b, .seq = s, .heads = h, .kv_heads = g, .dim = d, .causal = c, .scale = by}
static const struct problem problems[] = {
    PROBLEM(2, 37, 6, 2, 12, true, 1), PROBLEM(3, 21, 4, 4, 16, true, 1), PROBLEM(1, 70, 3, 1, 20, false, 1),
    PROBLEM(1, 1, 1, 1, 2, true, 1), PROBLEM(2, 0, 2, 1, 8, true, 1), PROBLEM(1, 131, 2, 2, 33, true, 1),
    PROBLEM(1, 13, 2, 1, 5, true, 1), PROBLEM(1, 67, 2, 1, 40, false, 1), PROBLEM(1, 41, 2, 1, 16, true, 60),
};

/* Causal and not, grouped query heads, odd sizes, four kinds of document masks, rows that see nothing, and scores
 * of several thousands: forward and backward agree with the definition to the storage's precision. */
START_TEST(attention_is_its_definition)
{
    int32_t documents[512];
    for (size_t i = 0; i < sizeof(problems) / sizeof(*problems); i++)
        for (int kind = 0; kind < 4; kind++)
            for (int s = 0; s < 2; s++) {
                struct problem p = problems[i];
                documents_fill(documents, p.batch, p.seq, kind);
                p.documents = kind ? documents : NULL;
                struct error error = {0};
                const struct ops *ops = ops_get(storages[s], NULL, "fixed", &error);
                struct buffers b = inputs(&p, storages[s]), r = reference(&p, &b, storages[s]);
                run(ops, &p, &b);
                double *lse = r.at[LSE];
                for (size_t e = 0; e < lse_count(&p); e++) /* infinities must match; then they are out of the way */
                    if (isinf(lse[e])) {
                        ck_assert_double_eq(get(b.at[LSE], e, storages[s]), lse[e]);
                        put(b.at[LSE], e, storages[s], 0);
                        lse[e] = 0;
                    }
                const double bound = (storages[s] == FORMAT_FP64 ? 1e-14 : 5e-6) * (p.scale > 1 ? 1000 : 1);
                static const int outputs[] = {O, LSE, DQ, DK, DV};
                for (size_t o = 0; o < 5; o++) {
                    const int x = outputs[o];
                    const size_t n = x == O || x == DQ ? q_count(&p) : x == LSE ? lse_count(&p) : k_count(&p);
                    double e = relative_error(b.at[x], r.at[x], n, storages[s]);
                    /* one-hot rows: gradients that vanish; measured against what cancels */
                    if (p.scale > 1 && (x == DQ || x == DK))
                        e *= norm(r.at[x], n) / (norm(r.at[x], n) + p.scale * sqrt((double)n));
                    ck_assert_msg(e <= bound, "problem %zu documents %d fp%d output %d: %g", i, kind,
                                  s ? 64 : 32, x, e);
                }
                buffers_free(&b), buffers_free(&r);
            }
}
END_TEST

/* Outputs of `b`, computed, against their definition. */
static void expect_definition(const struct problem *p, struct buffers *b, enum format s, double bound, const char *what)
{
    struct buffers r = reference(p, b, s);
    static const int outputs[] = {O, LSE, DQ, DK, DV};
    double *lse = r.at[LSE];
    for (size_t e = 0; e < lse_count(p); e++)
        if (isinf(lse[e])) {
            ck_assert_double_eq(get(b->at[LSE], e, s), lse[e]);
            put(b->at[LSE], e, s, 0);
            lse[e] = 0;
        }
    for (size_t o = 0; o < 5; o++) {
        const int x = outputs[o];
        const size_t n = x == O || x == DQ ? q_count(p) : x == LSE ? lse_count(p) : k_count(p);
        const double e = relative_error(b->at[x], r.at[x], n, s);
        ck_assert_msg(e <= bound, "%s output %d: %g", what, x, e);
    }
    buffers_free(&r);
}

/* Rows 0 .. n - 1 as positions that ascend with holes, other ones in each sequence. */
static void positions_fill(int32_t *positions, int64_t batch, int64_t n, unsigned salt)
{
    for (int64_t b = 0; b < batch; b++)
        for (int64_t i = 0, at = 0; i < n; i++, at++) {
            at += (int64_t)(fabs(coded((size_t)(b * n + i), salt)) * 3);
            positions[b * n + i] = (int32_t)at;
        }
}

/* Keys that are not the queries', at positions and in documents of their own, more or fewer of them or none; windows; another
 * scale: what is seen is what the definition says. */
START_TEST(attention_of_any_keys)
{
    static const int64_t shapes[][2] = {{37, 53}, {53, 37}, {1, 29}, {29, 1}, {31, 0}, {0, 31}, {70, 66}, {0, 0}};
    static const int64_t windows[] = {0, 1, 9};
    int32_t q_positions[512], k_positions[512], q_documents[512], k_documents[512];
    int seen_none = 0;
    for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
        for (int kind = 0; kind < 4; kind++)
            for (int mask = 0; mask < 6; mask++)
                for (int s = 0; s < 2; s++) {
                    struct problem p = {2, shapes[i][0], 6, 2, 12, mask % 2, NULL, 1, shapes[i][1], q_positions, k_positions, NULL,
                                        windows[mask / 2], kind == 1 ? 0.71 : 0, shapes[i][1] == 0};
                    positions_fill(q_positions, 2, p.seq, 11), positions_fill(k_positions, 2, keys_of(&p), 12);
                    documents_fill(q_documents, 2, p.seq, kind), documents_fill(k_documents, 2, keys_of(&p), kind);
                    if (kind)
                        p.documents = q_documents, p.k_documents = k_documents;
                    struct error error = {0};
                    struct buffers b = inputs(&p, storages[s]);
                    char what[96];
                    run(ops_get(storages[s], NULL, "fixed", &error), &p, &b);
                    for (size_t e = 0; e < lse_count(&p); e++)
                        seen_none += isinf(get(b.at[LSE], e, storages[s])) != 0;
                    snprintf(what, sizeof what, "shape %zu documents %d mask %d fp%d", i, kind, mask, s ? 64 : 32);
                    expect_definition(&p, &b, storages[s], s ? 1e-14 : 5e-6, what);
                    buffers_free(&b);
                }
    ck_assert_int_gt(seen_none, 0);
}
END_TEST

/* Positions that are spelled out give the bits that none give. */
START_TEST(attention_positions_spelled_out)
{
    int32_t documents[512], positions[512];
    for (size_t i = 0; i < sizeof(problems) / sizeof(*problems); i++)
        for (int kind = 0; kind < 4; kind++) {
            struct problem p = problems[i], q;
            documents_fill(documents, p.batch, p.seq, kind);
            p.documents = kind ? documents : NULL;
            q = p;
            for (int64_t j = 0; j < p.batch * p.seq; j++)
                positions[j] = (int32_t)(j % p.seq + 5);
            q.q_positions = q.k_positions = positions;
            q.window = 1000;
            struct error error = {0};
            struct buffers a = inputs(&p, FORMAT_FP32), b = inputs(&p, FORMAT_FP32);
            run(ops_get(FORMAT_FP32, NULL, "fixed", &error), &p, &a);
            run(ops_get(FORMAT_FP32, NULL, "fixed", &error), &q, &b);
            for (int x = O; x < BUFFERS; x++) {
                size_t n = x == O || x == DQ ? q_count(&p) : x == LSE ? lse_count(&p) : k_count(&p);
                ck_assert(same_bits(a.at[x], b.at[x], n, FORMAT_FP32));
            }
            buffers_free(&a), buffers_free(&b);
        }
}
END_TEST

/* Every variant gives the same bits, and so does each sequence computed alone. */
START_TEST(attention_bits_are_one)
{
    int32_t documents[512];
    for (size_t i = 0; i < sizeof(problems) / sizeof(*problems); i++)
        for (int kind = 0; kind < 4; kind++)
            for (int s = 0; s < 2; s++) {
                struct problem p = problems[i];
                documents_fill(documents, p.batch, p.seq, kind);
                p.documents = kind ? documents : NULL;
                const struct ops *tables[3];
                const int count = variants(storages[s], tables);
                struct buffers first = inputs(&p, storages[s]);
                run(tables[0], &p, &first);
                for (int t = 1; t <= count; t++) { /* the last round: sequence by sequence */
                    struct buffers b = inputs(&p, storages[s]);
                    if (t < count)
                        run(tables[t], &p, &b);
                    for (int64_t q = 0; t == count && q < p.batch; q++) {
                        struct problem one = p;
                        one.batch = 1;
                        one.documents = kind ? documents + q * p.seq : NULL;
                        struct buffers part;
                        for (int x = 0; x < BUFFERS; x++) {
                            bool kv = x == K || x == V || x == DK || x == DV;
                            size_t n = x == LSE ? lse_count(&one) : kv ? k_count(&one) : q_count(&one);
                            part.at[x] = (char *)b.at[x] + (size_t)q * n * real_bytes(storages[s]);
                        }
                        run(tables[count - 1], &one, &part);
                    }
                    for (int x = O; x < BUFFERS; x++) {
                        size_t n = x == O || x == DQ ? q_count(&p) : x == LSE ? lse_count(&p) : k_count(&p);
                        ck_assert_msg(same_bits(b.at[x], first.at[x], n, storages[s]),
                                      "problem %zu kind %d round %d output %d", i, kind, t, x);
                    }
                    buffers_free(&b);
                }
                buffers_free(&first);
            }
}
END_TEST

/* A causal query's bits come from its past alone: NaNs in later keys and values reach no earlier output or dq, and
 * NaNs in earlier queries and gradients reach no dk or dv of a later key. */
START_TEST(attention_never_touches_the_unseen)
{
    const struct problem p = PROBLEM(1, 50, 2, 1, 16, true, 1);
    for (int s = 0; s < 2; s++) {
        const struct ops *tables[3];
        const int count = variants(storages[s], tables);
        for (int t = 0; t < count; t++) {
            const size_t row = (size_t)(p.heads * p.dim), kv_row = (size_t)(p.kv_heads * p.dim), from = 23;
            struct buffers clean = inputs(&p, storages[s]), dirty = inputs(&p, storages[s]);
            run(tables[t], &p, &clean);
            for (size_t i = from * kv_row; i < k_count(&p); i++)
                put(dirty.at[K], i, storages[s], NAN), put(dirty.at[V], i, storages[s], NAN);
            run(tables[t], &p, &dirty);
            ck_assert(same_bits(dirty.at[O], clean.at[O], from * row, storages[s]));
            ck_assert(same_bits(dirty.at[DQ], clean.at[DQ], from * row, storages[s]));
            ck_assert(isnan(get(dirty.at[O], from * row, storages[s])));
            buffers_free(&dirty);
            dirty = inputs(&p, storages[s]);
            for (size_t i = 0; i < from * row; i++)
                put(dirty.at[Q], i, storages[s], NAN), put(dirty.at[D_O], i, storages[s], NAN);
            run(tables[t], &p, &dirty);
            const size_t offset = from * kv_row * real_bytes(storages[s]), n = k_count(&p) - from * kv_row;
            ck_assert(same_bits((char *)dirty.at[DK] + offset, (char *)clean.at[DK] + offset, n, storages[s]));
            ck_assert(same_bits((char *)dirty.at[DV] + offset, (char *)clean.at[DV] + offset, n, storages[s]));
            ck_assert(isnan(get(dirty.at[DV], from * kv_row - 1, storages[s])));
            buffers_free(&clean), buffers_free(&dirty);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_attention");
    TCase *tests = tcase_create("attention");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, attention_is_its_definition);
    tcase_add_test(tests, attention_of_any_keys);
    tcase_add_test(tests, attention_positions_spelled_out);
    tcase_add_test(tests, attention_bits_are_one);
    tcase_add_test(tests, attention_never_touches_the_unseen);
    suite_add_tcase(suite, tests);
    return run_suite(suite, CK_NOFORK);
}
