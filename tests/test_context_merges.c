/* test_context_merges: attention over blocks of keys, merged, is attention over all keys: one to sixteen blocks of unequal sizes in any
 * order, one after the other and two by two, with blocks of no keys and blocks of which no query sees anything, scores up to +-1000;
 * every merge, fp64 to 1e-12; fp32 to 32 2^-24, where scores are of ordinary size. */
#include "tests/context_support.h"
#include "tests/support/run_suite.h"

enum { B = 2, S = 61, H = 4, G = 2, D = 8, BLOCKS_MAX = 16, ROWS = B * S * H };

struct chunk { int32_t rows[S]; int64_t count; };

/* Keys into so many blocks, of sizes 0, 1 and many; empty: one block has none. Positions in a block ascend. */
static void cut(struct chunk *chunks, int blocks, int kind, unsigned salt)
{
    for (int i = 0; i < blocks; i++) chunks[i].count = 0;
    for (int32_t j = 0; j < S; j++) {
        int to = kind == 0 ? (int)(fabs(coded((size_t)j / 3, salt)) * blocks) : kind == 1 ? j * blocks / S : (int)(sqrt((double)j / S) * blocks);
        if (kind == 2 && blocks > 2 && to == 1) to = 2; /* 1 is left empty */
        chunks[to].rows[chunks[to].count++] = j;
    }
    for (int i = blocks - 1; i > 0; i--) { /* in any order */
        int with = (int)(fabs(coded((size_t)i, salt + 5)) * (i + 1));
        struct chunk keep = chunks[i];
        chunks[i] = chunks[with], chunks[with] = keep;
    }
}

struct inputs { struct tensor q, k, v; enum format storage; double by; int32_t positions[B * S]; };

static struct tensor numbers(enum format storage, int heads, unsigned salt, double by, struct arena *arena)
{
    struct tensor t = tensor_4d(arena_alloc(arena, (size_t)(B * S * heads * D) * 8), storage, B, S, heads, D);
    for (int64_t i = 0; i < tensor_count(t); i++) {
        double value = normal((size_t)i, salt) * by;
        int64_t row = i / (heads * D) % S;
        if (by != 1 && salt == 2) value *= row % 5 == 0 ? 3 : row % 7 == 0 ? -3 : 0.1; /* some blocks weigh everything, some nothing */
        format_set(t.data, (size_t)i, storage, value);
    }
    return t;
}

static struct context_partial *result_of(const struct inputs *in, const struct chunk *chunk, const struct attention_view *like, struct arena *arena)
{
    struct error error = {0};
    const struct ops *ops = ops_get(in->storage, NULL, "fixed", &error);
    size_t width = format_storage_bytes(in->storage);
    int64_t n = chunk->count;
    struct tensor k = tensor_4d(arena_alloc(arena, (size_t)(B * n * G * D) * width + 1), in->storage, B, n, G, D), v = k;
    v.data = arena_alloc(arena, (size_t)(B * n * G * D) * width + 1);
    int32_t *positions = arena_alloc(arena, (size_t)(B * n) * 4 + 1);
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < n; i++) {
            size_t row = (size_t)(G * D) * width;
            positions[b * n + i] = chunk->rows[i];
            memcpy((char *)k.data + (size_t)(b * n + i) * row, (char *)in->k.data + (size_t)(b * S + chunk->rows[i]) * row, row);
            memcpy((char *)v.data + (size_t)(b * n + i) * row, (char *)in->v.data + (size_t)(b * S + chunk->rows[i]) * row, row);
        }
    struct attention_view view = *like;
    view.q_positions = in->positions;
    view.k_positions = positions;
    struct context_partial *ret = arena_zalloc(arena, sizeof *ret);
    struct tensor out = tensor_4d(arena_alloc(arena, ROWS * D * 8), in->storage, B, S, H, D), lse = tensor_3d(arena_alloc(arena, ROWS * 8), in->storage, B, H, S);
    ops->attention_forward(out, lse, in->q, k, v, &view, in->storage, arena_alloc(arena, ops->attention_scratch(S, D)));
    ret->out = tensor_2d(out.data, in->storage, ROWS, D);
    ret->lse = tensor_1d(arena_alloc(arena, ROWS * 8), in->storage, ROWS); /* [B, S, H], as out has its rows */
    for (int64_t i = 0; i < ROWS; i++) format_set(ret->lse.data, (size_t)i, in->storage, format_get(lse.data, (size_t)((i / (S * H) * H + i % H) * S + i / H % S), in->storage));
    return ret;
}

static struct context_partial *clone_of(const struct context_partial *from, struct arena *arena)
{
    struct context_partial *ret = arena_zalloc(arena, sizeof *ret);
    *ret = *from;
    ret->out.data = memcpy(arena_alloc(arena, (size_t)tensor_bytes(from->out)), from->out.data, (size_t)tensor_bytes(from->out));
    ret->lse.data = memcpy(arena_alloc(arena, (size_t)tensor_bytes(from->lse)), from->lse.data, (size_t)tensor_bytes(from->lse));
    return ret;
}

static struct context_partial *merged(const struct context_merge *merge, const struct merging *m, struct context_partial **all, int first, int count, bool tree)
{
    if (count == 1) return all[first];
    int left = tree ? count / 2 : count - 1;
    struct context_partial *a = merged(merge, m, all, first, left, tree), *b = merged(merge, m, all, first + left, count - left, tree);
    merge->merge(m, a, b);
    return a;
}

static void expect_same(const struct context_partial *a, const struct context_partial *b, double limit, const char *text)
{
    double difference[2] = {0}, norm[2] = {0};
    for (int64_t i = 0; i < ROWS; i++) {
        double x = format_get(a->lse.data, (size_t)i, a->lse.storage), y = format_get(b->lse.data, (size_t)i, b->lse.storage);
        ck_assert_msg(isinf(x) == isinf(y) && !isnan(x), "%s: row %d: lse %g, due %g", text, (int)i, x, y);
        if (!isinf(x)) difference[1] += (x - y) * (x - y), norm[1] += fmax(1, y * y);
        for (int d = 0; d < D; d++) {
            double p = format_get(a->out.data, (size_t)(i * D + d), a->out.storage), q = format_get(b->out.data, (size_t)(i * D + d), b->out.storage);
            if (isinf(y)) ck_assert_msg(p == 0, "%s: row %d saw nothing and is %g", text, (int)i, p);
            difference[0] += (p - q) * (p - q), norm[0] += q * q;
        }
    }
    for (int i = 0; i < 2; i++) {
        double e = norm[i] > 0 ? sqrt(difference[i] / norm[i]) : sqrt(difference[i]);
        ck_assert_msg(e <= limit, "%s: %s off by %g", text, i ? "lse" : "out", e);
    }
}

START_TEST(blocks_in_any_order)
{
    static const double sizes[] = {1, 18, 0.01}; /* 18: scores beyond +-1000 */
    double largest = 0;
    int empty = 0;
    for (int f = 0; f < 2; f++)
        for (int size = 0; size < 3; size++)
            for (int mask = 0; mask < 4; mask++)
                for (int blocks = 1; blocks <= BLOCKS_MAX; blocks++) {
                    struct arena *arena = arena_new("merges", false);
                    enum format storage = f ? FORMAT_FP32 : FORMAT_FP64;
                    struct inputs in = {.storage = storage, .q = numbers(storage, H, 1, sizes[size], arena), .k = numbers(storage, G, 2, sizes[size], arena), .v = numbers(storage, G, 3, 1, arena)};
                    struct error error = {0};
                    struct chunk chunks[BLOCKS_MAX], whole = {.count = S};
                    struct context_partial *all[BLOCKS_MAX], *computed[BLOCKS_MAX];
                    struct attention_view view = {.causal = mask % 2, .window = mask == 2 ? 5 : mask == 3 ? 9 : 0};
                    for (int i = 0; i < B * S; i++) in.positions[i] = i % S;
                    for (int i = 0; i < S; i++) whole.rows[i] = i;
                    if (mask == 1) in.positions[0] = -1; /* sees nothing */
                    struct context_partial *due = result_of(&in, &whole, &view, arena);
                    for (int64_t i = 0; i < ROWS; i++) {
                        double lse = format_get(due->lse.data, (size_t)i, storage);
                        if (!isinf(lse)) largest = fmax(largest, fabs(lse));
                    }
                    cut(chunks, blocks, blocks % 3, (unsigned)(blocks * 4 + mask));
                    for (int i = 0; i < blocks; i++) {
                        computed[i] = result_of(&in, &chunks[i], &view, arena);
                        empty += chunks[i].count == 0;
                    }
                    for (int way = 0; way < 2 * context_merge_count(); way++) {
                        struct arena_mark mark = arena_mark(arena);
                        struct merging m = {ops_get(storage, NULL, "fixed", &error), arena, true};
                        const struct context_merge *merge = context_merge_at(way / 2);
                        for (int i = 0; i < blocks; i++) {
                            all[i] = clone_of(computed[i], arena);
                            if (merge->begin) merge->begin(&m, all[i]);
                        }
                        struct context_partial *got = merged(merge, &m, all, 0, blocks, way % 2);
                        if (merge->finish) merge->finish(&m, got);
                        char text[128];
                        snprintf(text, sizeof text, "%s %s, %d blocks, mask %d, scores %g, %s", merge->name, way % 2 ? "tree" : "linear", blocks, mask, sizes[size], format_traits[storage].name);
                        expect_same(got, due, !f ? 1e-12 : sizes[size] > 1 ? 1000 * 0x1p-23 : 32 * 0x1p-24, text); /* fp32: a log-sum-exp of 1000 is known to its own roundoff */
                        arena_release(arena, mark);
                    }
                    arena_free(arena);
                }
    ck_assert_double_gt(largest, 1000);
    ck_assert_int_gt(empty, 0);
}
END_TEST

/* Wholly masked blocks at the beginning, in the middle and at the end, and nothing else: 0 and -inf, no NaN. */
START_TEST(blocks_that_nobody_sees)
{
    for (int way = 0; way < 2 * context_merge_count(); way++)
        for (int seen = -1; seen < 5; seen++) {
            struct arena *arena = arena_new("merges", false);
            struct error error = {0};
            struct inputs in = {.storage = FORMAT_FP64, .q = numbers(FORMAT_FP64, H, 1, 1, arena), .k = numbers(FORMAT_FP64, G, 2, 1, arena), .v = numbers(FORMAT_FP64, G, 3, 1, arena)};
            struct merging m = {ops_get(FORMAT_FP64, NULL, "fixed", &error), arena, true};
            const struct context_merge *merge = context_merge_at(way / 2);
            struct attention_view view = {.causal = true};
            struct chunk early = {.count = 9}, late = {.count = 7};
            struct context_partial *all[5];
            for (int i = 0; i < 9; i++) early.rows[i] = i;
            for (int i = 0; i < 7; i++) late.rows[i] = 40 + i;
            for (int i = 0; i < B * S; i++) in.positions[i] = i % S / 2; /* all below 40 */
            for (int i = 0; i < 5; i++) {
                all[i] = result_of(&in, i == seen ? &early : &late, &view, arena);
                if (merge->begin) merge->begin(&m, all[i]);
            }
            struct context_partial *got = merged(merge, &m, all, 0, 5, way % 2), *due = result_of(&in, seen < 0 ? &late : &early, &view, arena);
            if (merge->finish) merge->finish(&m, got);
            expect_same(got, due, 1e-15, merge->name);
            arena_free(arena);
        }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("context_merges");
    TCase *tests = tcase_create("merges");
    tcase_set_timeout(tests, 300);
    tcase_add_test(tests, blocks_in_any_order);
    tcase_add_test(tests, blocks_that_nobody_sees);
    suite_add_tcase(suite, tests);
    return run_suite(suite, CK_NOFORK);
}
