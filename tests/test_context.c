/* test_context: attention over a split sequence against one device.
 *
 * Every method, layout, mask, kind of heads and number of ranks that is defined, forward and backward, with data whose blocks weigh
 * far from equally, against the kernel of one device in fp64 on the inputs as they are rounded: the relative Frobenius error of each
 * member's rows of each head, in fp64 <= 1e-12, fp32 <= 32 2^-24, bf16 <= 0.8 2^-8, fp16 <= 0.8 2^-11. In CI a part of all
 * combinations, all of them with the argument `long`, or an eighth of them with `long 1` to `long 8`. */
#include "tests/context_support.h"
#include "tests/support/run_suite.h"

static bool all_of_them;
static int part;                           /* of all of them: 1 to 8, or 0 for all parts */

/* ---- against one device ---- */

static double limit_of(const struct trial *t)
{
    if (t->activation == FORMAT_BF16 || t->activation == FORMAT_FP16) return 0.8 * format_traits[t->activation].unit_roundoff;
    return t->storage == FORMAT_FP64 ? 1e-12 : 32 * 0x1p-24;
}

static void describe(const struct trial *t, char text[256])
{
    snprintf(text, 256, "%s %s %s%s%s%s P %d U %d B %d S %d J %d H %d/%d causal %d window %d documents %d sinks %d %s/%s", t->method, t->layout, t->merge,
             t->tree ? " tree" : "", t->overlap ? " overlap" : "", t->reversed ? " reversed" : "", t->size, t->ulysses, (int)t->batch, (int)t->seq,
             (int)t->joint, t->heads, t->kv_heads, t->causal, (int)t->window, t->documents_kind, t->sinks, format_traits[t->storage].name, format_traits[t->activation].name);
}

/* Whose position is it, for each of [B, S]; -1 joint. */
static int *owners(const struct trial *t)
{
    int *owner = malloc((size_t)(t->batch * t->seq + 1) * sizeof *owner);
    struct group group = {.size = t->size};
    struct context_parallel cp = {.group = &group, .layout = context_layout_find(t->layout)};
    struct context_call call = {.cp = &cp, .batch = t->batch, .seq = t->seq, .joint = t->joint, .joint_place = t->place, .documents = t->documents};
    int32_t *positions = malloc((size_t)(t->seq + 1) * sizeof *positions);
    for (int64_t b = 0; b < t->batch; b++) {
        for (int m = 0; m < t->size; m++) {
            context_positions(&call, m, b, positions);
            for (int64_t i = 0; i < context_rows(&call, m); i++) owner[b * t->seq + positions[i]] = m;
        }
        for (int64_t i = 0; i < t->joint; i++) owner[b * t->seq + (t->place == JOINT_FRONT ? i : t->seq - 1 - i)] = -1;
    }
    free(positions);
    return owner;
}

/* ---- what cancels ---- */

/* || of the absolute terms || that a result is added up from, the difference of d_out v and delta counted as two: out p |v|;
 * dq p (|d_out v| + |delta|) |k| scale; dk alike with |q|; dv p |d_out|. Into ret[OUT, DQ, DK, DV], caller frees. */
static void terms_of(const struct trial *t, double *const *ref, double *ret[WHOLE])
{
    double scale = 1 / sqrt((double)t->dim);
    int group = t->heads / t->kv_heads, dim = t->dim;
    for (int w = OUT; w < WHOLE; w++) ret[w] = calloc(whole_count(t, w) + 1, sizeof(double));
    for (int64_t b = 0; b < t->batch; b++)
        for (int h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < t->seq; i++) {
                size_t at = (size_t)(((b * t->seq + i) * t->heads + h) * dim);
                double delta = 0;
                for (int d = 0; d < dim; d++) delta += fabs(t->whole[D_OUT][at + (size_t)d] * ref[OUT][at + (size_t)d]);
                for (int64_t j = 0; j < t->seq; j++) {
                    size_t of = (size_t)(((b * t->seq + j) * t->kv_heads + h / group) * dim);
                    const int32_t *document = t->documents ? t->documents + b * t->seq : NULL;
                    if ((t->causal && j > i) || (t->window > 0 && llabs(i - j) >= t->window) || (document && (document[i] != document[j] || document[i] < 0))) continue;
                    double s = 0, dp = 0;
                    for (int d = 0; d < dim; d++) {
                        s += t->whole[Q][at + (size_t)d] * t->whole[K][of + (size_t)d] * scale;
                        dp += fabs(t->whole[D_OUT][at + (size_t)d] * t->whole[V][of + (size_t)d]);
                    }
                    double p = exp(s - ref[LSE][(b * t->heads + h) * t->seq + i]), ds = p * (dp + delta) * scale;
                    for (int d = 0; d < dim; d++) {
                        ret[OUT][at + (size_t)d] += p * fabs(t->whole[V][of + (size_t)d]);
                        ret[DQ][at + (size_t)d] += ds * fabs(t->whole[K][of + (size_t)d]);
                        ret[DK][of + (size_t)d] += ds * fabs(t->whole[Q][at + (size_t)d]);
                        ret[DV][of + (size_t)d] += p * fabs(t->whole[D_OUT][at + (size_t)d]);
                    }
                }
            }
}

static double worst_seen[FORMAT_COUNT];

static size_t index_of(const struct trial *t, int which, int heads, int64_t r, int h, int d)
{
    return which == LSE ? (size_t)((r / t->seq * heads + h) * t->seq + r % t->seq) : (size_t)((r * heads + h) * t->dim + d);
}

/* Each member's rows of each head (joint rows: a member of their own): the error over their norm or, where they cancel, over that of
 * the absolute terms. */
static void expect_close(const struct trial *t, double *const *ref, int which, double limit)
{
    int heads = which == OUT || which == DQ || which == LSE ? t->heads : t->kv_heads, dim = which == LSE ? 1 : t->dim, *owner = owners(t);
    double *terms[WHOLE] = {0};
    char text[256];
    describe(t, text);
    for (int m = -1; m < t->size; m++) {
        for (int h = 0; h < heads; h++) {
            double difference = 0, norm = 0, e;
            for (int64_t r = 0; r < t->batch * t->seq; r++) {
                for (int d = 0; d < dim && owner[r] == m; d++) {
                    size_t i = index_of(t, which, heads, r, h, d);
                    double a = t->whole[which][i], b = ref[which][i];
                    if (isinf(b)) {
                        ck_assert_msg(a == b, "%s: %s is %g, due %g", text, whole_names[which], a, b);
                        continue;
                    }
                    difference += (a - b) * (a - b);
                    norm += which == LSE ? fmax(1, b * b) : b * b; /* of a logarithm the error counts, not what it is over a value near 0 */
                }
            }
            e = sqrt(difference) / (norm > 0 ? sqrt(norm) : 1);
            if (!(e <= limit) && which != LSE) {
                double all = 0;
                if (!terms[OUT]) terms_of(t, ref, terms);
                for (int64_t r = 0; r < t->batch * t->seq; r++) {
                    for (int d = 0; d < dim && owner[r] == m; d++) all += terms[which][index_of(t, which, heads, r, h, d)] * terms[which][index_of(t, which, heads, r, h, d)];
                }
                e = sqrt(difference) / sqrt(fmax(all, norm));
            }
            ck_assert_msg(e <= limit, "%s: %s of member %d head %d: %g, %g of the limit", text, whole_names[which], m, h, e, e / limit);
            if (e > worst_seen[t->activation]) worst_seen[t->activation] = e;
        }
    }
    for (int w = 0; w < WHOLE; w++) free(terms[w]);
    free(owner);
}

static void compare(struct trial *t)
{
    double *ref[WHOLE];
    bool narrow = t->activation != t->storage;
    trial_run(t);
    ck_assert_int_eq(t->ranks.outcome, MACHINE_FINISHED);
    struct mismatch mismatch[1];
    ck_assert_int_eq(match_calls(t->ranks.communicators, t->size, true, mismatch, 1), 0);
    reference(t, ref, narrow);
    for (int w = OUT; w <= DV; w++) {
        if (w >= DQ && t->forward_only) break;
        expect_close(t, ref, w, w == LSE && narrow ? 32 * 0x1p-24 : limit_of(t));
    }
    for (int h = 0; h < t->heads && t->sinks && !narrow; h++) ck_assert(fabs(t->whole[D_SINKS][h] - ref[D_SINKS][h]) <= limit_of(t) * (fabs(ref[D_SINKS][h]) + 1) * 10);
    for (int m = 1; m < t->size && t->joint; m++) { /* all members have the joint rows' output, from all keys */
        for (int64_t i = 0; i < t->batch * t->joint * t->heads * t->dim; i++) ck_assert(fabs(t->joint_out[m][i] - t->joint_out[0][i]) <= 4 * limit_of(t) * (1 + fabs(t->joint_out[0][i])));
    }
    reference_free(ref);
}

struct mask { bool causal; int64_t window; int documents; };
static const struct mask masks[] = {{true, 0, 0}, {false, 0, 0}, {true, 9, 0}, {false, 7, 0}, {false, 0, 1}, {true, 0, 2}, {true, 13, 3}};
static const int64_t lengths[] = {83, 66, 64, 5};
static const struct { enum format storage, activation; } formats[] = {
    {FORMAT_FP64, FORMAT_FP64}, {FORMAT_FP32, FORMAT_FP32}, {FORMAT_FP32, FORMAT_BF16}, {FORMAT_FP32, FORMAT_FP16}};

/* heads 0: as many of keys as of queries; 1: grouped; 2: one of keys. */
static void heads_of(struct trial *t, int kind)
{
    bool split = !strcmp(t->method, "ulysses") || !strcmp(t->method, "usp");
    int parts = !strcmp(t->method, "ulysses") ? t->size : !strcmp(t->method, "usp") ? t->ulysses : 1;
    t->heads = kind == 0 ? 3 : kind == 1 ? 6 : 4;
    t->kv_heads = kind == 0 ? 3 : kind == 1 ? 2 : 1;
    if (split && kind == 0) t->heads = t->kv_heads = parts;
    if (split && kind == 1) t->kv_heads = parts, t->heads = 2 * parts;
    if (split && kind == 2) t->heads = 2 * parts;
}

/* A divisor of the size, another one each time. */
static int divisor(int size, unsigned turn)
{
    int found = 0, all[16];
    for (int d = 1; d <= size; d++) {
        if (size % d == 0) all[found++] = d;
    }
    return all[turn % (unsigned)found];
}

START_TEST(as_on_one_device)
{
    int64_t turn = 0, done = 0, refused = 0;
    for (int m = 0; m < context_method_count(); m++)
        for (int l = 0; l < context_layout_count(); l++)
            for (size_t k = 0; k < sizeof masks / sizeof *masks; k++)
                for (int heads = 0; heads < 3; heads++)
                    for (int size = 1; size <= 8; size++)
                        for (int s = 0; s < 4; s++)
                            for (int batch = 1; batch <= 2; batch++)
                                for (int f = 0; f < 4; f++) {
                                    turn++;
                                    if (all_of_them ? part > 0 && turn * 5 / 4 % 8 != part - 1 : turn * 7 % 113 != 0) continue;
                                    unsigned way = (unsigned)(coded((size_t)turn, 77) * 1e6 + 1e6);
                                    struct trial t = {.method = context_method_at(m)->name, .layout = context_layout_at(l)->name,
                                        .merge = context_merge_at((int)(way % 4 % (unsigned)context_merge_count()))->name, .tree = way / 4 % 2, .overlap = way / 8 % 2, .reversed = way / 16 % 2,
                                        .size = size, .ulysses = divisor(size, way / 64), .batch = batch, .seq = lengths[s], .dim = 12, .causal = masks[k].causal,
                                        .window = masks[k].window, .documents_kind = masks[k].documents, .storage = formats[f].storage, .activation = formats[f].activation,
                                        .softmax = formats[f].storage, .ledgers = way / 32 % 2};
                                    heads_of(&t, heads);
                                    struct context_shape shape = {.batch = batch, .seq = t.seq, .size = size, .ulysses = t.ulysses, .heads = t.heads, .kv_heads = t.kv_heads, .head_dim = t.dim};
                                    char why[320] = "";
                                    if (!context_method_at(m)->allows(&shape, why)) {
                                        ck_assert_ptr_nonnull(strstr(why, "divide"));
                                        refused++;
                                        continue;
                                    }
                                    compare(&t);
                                    trial_done(&t);
                                    done++;
                                }
    ck_assert_int_gt(refused, 0);
    ck_assert_int_gt(done, 200);
    printf("%d cases, %d refused; worst fp64 %.2g, fp32 %.1f of 2^-24, bf16 %.2f of 2^-8, fp16 %.2f of 2^-11\n", (int)done, (int)refused, worst_seen[FORMAT_FP64],
           worst_seen[FORMAT_FP32] * 0x1p24, worst_seen[FORMAT_BF16] * 0x1p8, worst_seen[FORMAT_FP16] * 0x1p11);
}
END_TEST

/* Joint rows in front and behind, sinks, and both with windows and documents, in every method. */
START_TEST(joint_rows_and_sinks)
{
    int done = 0;
    for (int m = 0; m < context_method_count(); m++)
        for (int l = 0; l < context_layout_count(); l++)
            for (int size = 1; size <= 6; size++)
                for (int way = 0; way < 24; way++) {
                    if (!all_of_them && (way * 5 + size + l) % 7 != 0) continue;
                    struct trial t = {.method = context_method_at(m)->name, .layout = context_layout_at(l)->name, .merge = context_merge_at(way % 4)->name,
                        .tree = way / 2 % 2, .overlap = way / 3 % 2, .reversed = way % 2, .size = size, .ulysses = divisor(size, (unsigned)way), .batch = 1 + way % 2,
                        .seq = way % 5 == 4 ? 9 : 47, .joint = way % 3 == 2 ? 0 : way % 3 == 1 ? 7 : 3, .place = way / 4 % 2 ? JOINT_FRONT : JOINT_REAR, .dim = 12,
                        .causal = way / 6 % 2, .window = way % 7 == 3 ? 8 : 0, .documents_kind = way % 6 == 5 ? 1 : 0, .sinks = way % 4 != 1,
                        .storage = FORMAT_FP64, .activation = FORMAT_FP64, .softmax = FORMAT_FP64, .ledgers = true};
                    heads_of(&t, way % 2);
                    compare(&t);
                    ck_assert_int_eq(t.others, 0);
                    ck_assert_int_eq(t.facts, 2 * size);
                    trial_done(&t);
                    done++;
                }
    ck_assert_int_gt(done, 150);
}
END_TEST

/* ---- who has what, and what was consumed ---- */

/* Every position is on one member, ascending there; how many a member has does not depend on the documents; and of a layout that
 * follows the documents each document is spread: no member has more than two runs of floor(L / 2P) and one of what is left over in turn. */
START_TEST(layouts_are_bijections)
{
    int32_t documents[48], positions[48];
    for (int l = 0; l < context_layout_count(); l++)
        for (int64_t seq = 1; seq <= 40; seq++)
            for (int size = 1; size <= 9; size++)
                for (int kind = 0; kind < 6; kind++) {
                    const struct context_layout *layout = context_layout_at(l);
                    bool held[48] = {false};
                    int64_t all = 0;
                    for (int64_t i = 0; i < seq; i++) documents[i] = (int32_t)(fabs(coded((size_t)(i / (1 + kind)), (unsigned)(seq * 9 + kind))) * 4) - 1;
                    for (int me = 0; me < size; me++) {
                        int64_t count = layout->positions(seq, size, me, kind ? documents : NULL, positions);
                        ck_assert_int_eq(count, context_layout_rows(layout, seq, size, me));
                        ck_assert_int_eq(count, layout->positions(seq, size, me, kind ? documents : NULL, NULL));
                        if (strcmp(layout->name, "zigzag")) ck_assert_int_eq(count, seq / size + (me < seq % size));
                        else ck_assert_int_le(llabs(count - seq / size), 2);
                        for (int64_t i = 0; i < count; i++) {
                            ck_assert(positions[i] >= 0 && positions[i] < seq && !held[positions[i]]);
                            ck_assert(i == 0 || positions[i] > positions[i - 1]);
                            held[positions[i]] = true;
                        }
                        all += count;
                        for (int64_t begin = 0, end; begin < seq && layout->by_documents && kind; begin = end) {
                            for (end = begin + 1; end < seq && (documents[end] == documents[begin]); end++) continue;
                            int64_t mine = 0, due = 2 * ((end - begin) / (2 * size)), over = (end - begin) % (2 * size);
                            for (int64_t i = 0; i < count; i++) mine += positions[i] >= begin && positions[i] < end;
                            ck_assert(mine >= due + over / size && mine <= due + (over + size - 1) / size);
                        }
                    }
                    ck_assert_int_eq(all, seq);
                }
}
END_TEST

/* What a member's output and gradients consumed, by ledger: its ring has every block that the mask lets its queries see once, and no
 * other; the others have every member once. Gradients of keys come from those members. */
START_TEST(consumption_is_what_the_mask_says)
{
    for (int m = 0; m < context_method_count(); m++)
        for (int l = 0; l < context_layout_count(); l++)
            for (size_t k = 0; k < sizeof masks / sizeof *masks; k++)
                for (int size = 1; size <= 6; size++) {
                    if (!all_of_them && (m + l + (int)k + size) % 3 != 0) continue;
                    bool ring = !strcmp(context_method_at(m)->name, "ring"), usp = !strcmp(context_method_at(m)->name, "usp");
                    struct trial t = {.method = context_method_at(m)->name, .layout = context_layout_at(l)->name, .merge = context_merge_at((int)k % 4)->name,
                        .tree = k % 2, .reversed = l % 2, .overlap = size % 2, .size = size, .ulysses = divisor(size, (unsigned)k), .batch = 2, .seq = 43, .dim = 8, .causal = masks[k].causal,
                        .window = masks[k].window, .documents_kind = masks[k].documents, .storage = FORMAT_FP32, .activation = FORMAT_FP32, .softmax = FORMAT_FP32, .ledgers = true};
                    heads_of(&t, 0);
                    trial_run(&t);
                    int *owner = owners(&t), parts = usp ? t.ulysses : 1;
                    ck_assert_int_eq(t.others, 0);
                    for (int q = 0; q < size; q++)
                        for (int c = 0; c < size; c++) {
                            bool seen = !ring && !usp; /* does any query of q's group see a key of c's? */
                            for (int64_t b = 0; b < t.batch && !seen; b++)
                                for (int64_t i = 0; i < t.seq && !seen; i++)
                                    for (int64_t j = 0; j < t.seq && !seen; j++) {
                                        const int32_t *d = t.documents ? t.documents + b * t.seq : NULL;
                                        seen = owner[b * t.seq + i] / parts == q / parts && owner[b * t.seq + j] / parts == c / parts && (!t.causal || j <= i) &&
                                               (t.window == 0 || llabs(i - j) < t.window) && (!d || (d[i] == d[j] && d[i] >= 0));
                                    }
                            ck_assert_int_eq(t.times[q][c], seen);
                            ck_assert_int_eq(t.times_backward[q][c], seen);
                            ck_assert_int_eq(t.gradient_times[c][q], seen);
                        }
                    free(owner);
                    trial_done(&t);
                }
}
END_TEST

/* ---- what it costs ---- */

struct cost { uint64_t count, messages, bytes; };

/* Of one rank, at a site. */
static struct cost cost_of(const struct communicator *c, const char *purpose)
{
    struct cost all = {0};
    for (int i = 0; i < communicator_traffic_count(c); i++) {
        const struct traffic *row = communicator_traffic(c, i);
        if (strcmp(row->purpose, purpose)) continue;
        all.count += row->count, all.messages += row->messages, all.bytes += row->bytes;
    }
    return all;
}

/* Messages and bytes as the files say: a ring's keys and values make P - 1 hops forward and P - 1 backward, its gradients P, reversed
 * P - 1; all_gather 2 + 2 gathers and 2 reduce-scatters; ulysses 4 + 4 all-to-alls; usp both over its groups. Bytes in the wire's
 * format, without what rides along. */
START_TEST(calls_are_as_declared)
{
    for (int m = 0; m < context_method_count(); m++)
        for (int size = 1; size <= 6; size++)
            for (int way = 0; way < 4; way++) {
                struct trial t = {.method = context_method_at(m)->name, .layout = "zigzag", .merge = "sigmoid", .reversed = way % 2, .overlap = way / 2, .size = size,
                    .ulysses = divisor(size, (unsigned)way), .batch = 2, .seq = 6 * size, .dim = 8, .causal = true, .storage = FORMAT_FP32,
                    .activation = FORMAT_BF16, .softmax = FORMAT_FP32, .ledgers = true};
                heads_of(&t, 1);
                trial_run(&t);
                bool heads = !strcmp(t.method, "ulysses") || !strcmp(t.method, "usp"), gathers = !strcmp(t.method, "all_gather");
                uint64_t u = !strcmp(t.method, "ulysses") ? (uint64_t)size : heads ? (uint64_t)t.ulysses : 1, p = gathers ? 1 : (uint64_t)size / u, n = (uint64_t)size;
                uint64_t rows = (uint64_t)(t.batch * 6), k = rows * (uint64_t)(t.kv_heads * t.dim), q = rows * (uint64_t)(t.heads * t.dim);
                for (int r = 0; r < size; r++) {
                    const struct communicator *c = t.ranks.communicators[r];
                    struct cost hop = cost_of(c, "cp.kv_hop"), back = cost_of(c, "cp.dkv_hop"), there = cost_of(c, "cp.seq_to_head"), home = cost_of(c, "cp.head_to_seq");
                    struct cost gather = cost_of(c, "cp.kv_gather"), scatter = cost_of(c, "cp.kv_grad_scatter");
                    uint64_t home_hops = p == 1 ? 0 : t.reversed ? p - 1 : p;
                    ck_assert_uint_eq(hop.messages, 2 * 2 * (p - 1));
                    ck_assert_uint_eq(hop.bytes, 2 * 2 * (p - 1) * k * 2); /* of the u members' rows, of 1/u of the heads */
                    ck_assert_uint_eq(back.messages, 2 * home_hops);
                    ck_assert_uint_eq(back.bytes, 2 * home_hops * k * 4);
                    ck_assert_uint_eq(there.count, heads ? 4 : 0);
                    ck_assert_uint_eq(home.count, heads ? 4 : 0);
                    ck_assert_uint_eq(there.messages, heads ? 4 * (u - 1) : 0);
                    ck_assert_uint_eq(there.bytes, heads ? ((q + 2 * k) * 2 + q * 4) / u * (u - 1) : 0);
                    ck_assert_uint_eq(home.bytes, heads ? (q * 2 + (q + 2 * k) * 4) / u * (u - 1) : 0);
                    ck_assert_uint_eq(gather.count, gathers ? 4 : 0);
                    ck_assert_uint_eq(gather.messages, gathers ? 4 * (n - 1) : 0);
                    ck_assert_uint_eq(gather.bytes, gathers ? 4 * (n - 1) * k * 2 : 0);
                    ck_assert_uint_eq(scatter.count, gathers ? 2 : 0);
                    ck_assert_uint_eq(scatter.bytes, gathers ? 2 * (n - 1) * k * 4 : 0);
                }
                trial_done(&t);
            }
}
END_TEST

/* ---- what a result may not depend on ---- */

/* Threads, the order in which ranks run, and overlap: the same bits. The one with itself repeated: there is something to see. */
START_TEST(order_of_ranks_is_no_matter)
{
    for (int m = 0; m < context_method_count(); m++)
        for (int l = 0; l < context_layout_count(); l++) {
            double *first[WHOLE] = {0};
            for (int way = 0; way < 6; way++) {
                struct trial t = {.method = context_method_at(m)->name, .layout = context_layout_at(l)->name, .merge = context_merge_at(l)->name, .tree = m % 2,
                    .reversed = l % 2, .overlap = way % 2, .threads = 1 + way / 2 % 3, .interleave = (uint64_t)way * 77, .size = 4, .ulysses = 2, .batch = 2, .seq = 37,
                    .dim = 12, .causal = true, .storage = FORMAT_FP32, .activation = FORMAT_BF16, .softmax = FORMAT_FP32, .ledgers = way != 3};
                heads_of(&t, 1);
                trial_run(&t);
                for (int w = OUT; w < D_SINKS; w++) {
                    size_t bytes = whole_count(&t, w) * sizeof(double);
                    if (!first[w]) first[w] = memcpy(malloc(bytes), t.whole[w], bytes);
                    ck_assert_msg(!memcmp(first[w], t.whole[w], bytes), "%s %s way %d: %s", t.method, t.layout, way, whole_names[w]);
                }
                trial_done(&t);
            }
            for (int w = 0; w < WHOLE; w++) free(first[w]);
        }
}
END_TEST

/* A group of one goes the way of many and gives the bits of the kernel on one device; so does ulysses, of any size, forward and
 * for the queries' gradient; and every method's output does without a merge. */
START_TEST(bits_of_one_device)
{
    static const struct { const char *method; int size; bool gradients; } same[] = {{"ring", 1, true}, {"all_gather", 1, true}, {"usp", 1, true}, {"ulysses", 1, true},
                                                                                    {"ulysses", 4, true}, {"ulysses", 3, true}, {"all_gather", 4, false}};
    double *first[WHOLE] = {0};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        struct trial t = {.method = same[i].method, .layout = "zigzag", .merge = "sigmoid", .size = same[i].size, .ulysses = 1, .batch = 2, .seq = 41, .heads = 24, .kv_heads = 12, .dim = 8,
                          .causal = true, .window = 17, .storage = FORMAT_FP32, .activation = FORMAT_FP32, .softmax = FORMAT_FP32};
        trial_run(&t);
        if (i == 0) { /* and this one's are the kernel's */
            struct error error = {0};
            const struct ops *ops = ops_get(FORMAT_FP32, NULL, "fixed", &error);
            struct tensor x[WHOLE];
            for (int w = 0; w < D_SINKS; w++) {
                first[w] = calloc(whole_count(&t, w), sizeof(double));
                x[w] = whole_tensor(&t, NULL, w);
                x[w].storage = FORMAT_FP32;
                x[w].data = malloc(whole_count(&t, w) * sizeof(float));
                for (size_t e = 0; e < whole_count(&t, w); e++) ((float *)x[w].data)[e] = (float)t.whole[w][e];
            }
            struct attention_view view = {.causal = true, .window = 17};
            void *scratch = malloc(ops->attention_scratch(t.seq, t.dim));
            ops->attention_forward(x[OUT], x[LSE], x[Q], x[K], x[V], &view, FORMAT_FP32, scratch);
            ops->attention_backward(x[DQ], x[DK], x[DV], x[D_OUT], x[Q], x[K], x[V], x[OUT], x[LSE], &view, FORMAT_FP32, scratch);
            for (int w = 0; w < D_SINKS; w++) {
                for (size_t e = 0; e < whole_count(&t, w); e++) first[w][e] = ((float *)x[w].data)[e];
                free(x[w].data);
            }
            free(scratch);
        }
        for (int w = OUT; w < D_SINKS; w++) {
            if (!same[i].gradients && w >= DK) continue;
            ck_assert_msg(!memcmp(first[w], t.whole[w], whole_count(&t, w) * sizeof(double)), "%s of %d: %s", t.method, t.size, whole_names[w]);
        }
        trial_done(&t);
    }
    for (int w = 0; w < WHOLE; w++) free(first[w]);
}
END_TEST

/* ---- gradients by finite differences ---- */

static double loss_of(struct trial *t)
{
    double loss = 0;
    for (size_t i = 0; i < whole_count(t, OUT); i++) loss += t->whole[OUT][i] * t->whole[D_OUT][i];
    return loss;
}

static int moved;                          /* what input, along which direction: by how much */
static double moved_by;

static void moving_inputs(struct trial *t)
{
    trial_inputs(t);
    for (size_t i = 0; i < whole_count(t, moved) && moved_by != 0; i++) t->whole[moved][i] += moved_by * coded(i, 99);
}

static double loss_moved(struct trial t, int which, double by)
{
    moved = which, moved_by = by;
    t.forward_only = true;
    moving_inputs(&t);
    t.ranks = (struct ranks){.mesh = mesh_line(t.size), .body = trial_body, .context = &t};
    ranks_run(&t.ranks);
    double loss = loss_of(&t);
    trial_done(&t);
    return loss;
}

/* window, documents, joint rows and sinks at once, fp64: the derivative along a direction. */
START_TEST(gradients_are_finite_differences)
{
    for (int m = 0; m < context_method_count(); m++)
        for (int front = 0; front < 2; front++) {
            struct trial t = {.method = context_method_at(m)->name, .layout = front ? "striped" : "document", .merge = "late", .size = 4, .ulysses = 2, .batch = 2, .seq = 21, .joint = 5,
                .place = front ? JOINT_FRONT : JOINT_REAR, .dim = 6, .causal = front, .window = 12, .documents_kind = 1, .sinks = true, .reversed = front, .tree = true,
                .storage = FORMAT_FP64, .activation = FORMAT_FP64, .softmax = FORMAT_FP64};
            heads_of(&t, 1);
            struct trial whole = t;
            trial_run(&whole);
            static const int inputs[] = {Q, K, V, SINKS}, gradients[] = {DQ, DK, DV, D_SINKS};
            for (int i = 0; i < 4; i++) {
                double due = 0, h = 1e-5, got = (loss_moved(t, inputs[i], h) - loss_moved(t, inputs[i], -h)) / (2 * h);
                for (size_t e = 0; e < whole_count(&whole, inputs[i]); e++) due += whole.whole[gradients[i]][e] * coded(e, 99);
                ck_assert_msg(fabs(due - got) <= 1e-7 * (1 + fabs(due)) && fabs(due) > 1e-3, "%s: along %s %g, differences say %g", t.method, whole_names[inputs[i]], due, got);
            }
            trial_done(&whole);
        }
}
END_TEST

int main(int argc, char **argv)
{
    all_of_them = argc > 2 && !strcmp(argv[2], "long");
    part = argc > 3 ? atoi(argv[3]) : 0;
    Suite *suite = suite_create("context");
    TCase *tests = tcase_create("context");
    tcase_set_timeout(tests, 3000);
    tcase_add_test(tests, as_on_one_device);
    tcase_add_test(tests, joint_rows_and_sinks);
    tcase_add_test(tests, layouts_are_bijections);
    tcase_add_test(tests, consumption_is_what_the_mask_says);
    tcase_add_test(tests, calls_are_as_declared);
    tcase_add_test(tests, order_of_ranks_is_no_matter);
    tcase_add_test(tests, bits_of_one_device);
    tcase_add_test(tests, gradients_are_finite_differences);
    suite_add_tcase(suite, tests);
    return run_suite(suite, CK_NOFORK);
}
