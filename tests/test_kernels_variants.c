/* test_kernels_variants: every row-wise and flat operation gives the same bits on every CPU path, and row by row. */
#include "tests/kernels_support.h"
#include "tests/support/run_suite.h"

enum { T_ROWS = 19, WIDTH = 53, HEADS = 3, HEAD_DIM = 22, VOCABULARY = 91, OUTPUTS_MAX = 64 };
struct outputs { int count; const char *name[OUTPUTS_MAX]; size_t n[OUTPUTS_MAX]; void *at[OUTPUTS_MAX]; };

static void *output(struct outputs *out, const char *name, size_t n, enum format s, unsigned salt)
{
    ck_assert_int_lt(out->count, OUTPUTS_MAX);
    out->name[out->count] = name;
    out->n[out->count] = n;
    return out->at[out->count++] = numbers(n, s, salt, 2);
}

static void outputs_free(struct outputs *out)
{
    for (int i = 0; i < out->count; i++)
        free(out->at[i]);
}

static void *part(void *data, size_t first, enum format s)
{
    return (char *)data + first * real_bytes(s);
}

/* Row-wise operations on rows [first, first + rows) of T_ROWS. Accumulating ones go through all rows either way. */
static void run_rows(const struct ops *ops, struct outputs *out, const int32_t *tokens, const int32_t *positions,
                     int64_t first, int64_t rows)
{
    const enum format s = ops->storage;
    const size_t f = (size_t)first;
    void *x = numbers(T_ROWS * WIDTH, s, 1, 3), *dy = numbers(T_ROWS * WIDTH, s, 2, 1), *w = numbers(WIDTH, s, 3, 1);
    void *table = numbers(VOCABULARY * WIDTH, s, 4, 1), *logits = numbers(T_ROWS * VOCABULARY, s, 5, 900);
    void *weight = numbers(T_ROWS, s, 6, 1);
    put(x, 3 * WIDTH + 2, s, NAN), put(x, 5 * WIDTH + 9, s, INFINITY), put(dy, 7 * WIDTH + 50, s, -INFINITY);
    put(logits, 2 * VOCABULARY + 1, s, NAN), put(logits, 4 * VOCABULARY + 90, s, -INFINITY);
    put(logits, 6 * VOCABULARY + 33, s, INFINITY), put(logits, 8 * VOCABULARY + 5, s, -0.0);
    put(x, 5, s, -0.0), put(x, 6, s, 1e30), put(x, 7, s, -1e30), put(x, 8, s, -100), put(x, 9, s, -750);
#define OUT(name, n, salt) (first == 0 ? output(out, name, n, s, salt) : out->at[next++])
#define ROWS(data, width) tensor_2d(part(data, f * (width), s), s, rows, width)
    int next = 0;
    void *y = OUT("embedding_forward", T_ROWS * WIDTH, 10), *norm = OUT("rmsnorm_forward", T_ROWS * WIDTH, 11);
    void *rstd = OUT("rstd", T_ROWS, 12), *dx = OUT("rmsnorm_backward_input", T_ROWS * WIDTH, 13);
    void *dw = OUT("rmsnorm_backward_weight", WIDTH, 14), *d_table = OUT("embedding_backward", VOCABULARY * WIDTH, 15);
    void *rope = OUT("rope_forward", T_ROWS * HEADS * HEAD_DIM, 16),
        *back = OUT("rope_backward", T_ROWS * HEADS * HEAD_DIM, 17);
    void *a = OUT("swiglu_forward", T_ROWS * WIDTH, 18), *dg = OUT("swiglu_backward dg", T_ROWS * WIDTH, 19);
    void *du = OUT("swiglu_backward du", T_ROWS * WIDTH, 20), *biased = OUT("bias_forward", T_ROWS * WIDTH, 21);
    void *db = OUT("bias_backward", WIDTH, 22), *loss = OUT("loss", T_ROWS, 23), *lse = OUT("lse", T_ROWS, 24);
    void *dlogits = OUT("cross_entropy_backward", T_ROWS * VOCABULARY, 25);
    void *sigmoid = OUT("sigmoid_forward", T_ROWS * WIDTH, 26), *d_sigmoid = OUT("sigmoid_backward", T_ROWS * WIDTH, 27);
    void *share = OUT("softmax_forward", T_ROWS * WIDTH, 28), *d_share = OUT("softmax_backward", T_ROWS * WIDTH, 29);
    void *power = OUT("exponential", T_ROWS * WIDTH, 30), *all = OUT("log_sum_exp", T_ROWS, 31);
    void *logarithm = OUT("logarithm", T_ROWS * WIDTH, 32);
    struct tensor scale = tensor_1d(part(rstd, f, s), s, rows), lses = tensor_1d(part(lse, f, s), s, rows);
    struct tensor width = tensor_1d(w, s, WIDTH);
    ops->embedding_forward(ROWS(y, WIDTH), tokens + first, tensor_2d(table, s, VOCABULARY, WIDTH));
    ops->embedding_backward(tensor_2d(d_table, s, VOCABULARY, WIDTH), tokens + first, ROWS(dy, WIDTH));
    ops->rmsnorm_forward(ROWS(norm, WIDTH), scale, ROWS(x, WIDTH), width, 1e-5);
    ops->rmsnorm_backward_input(ROWS(dx, WIDTH), ROWS(dy, WIDTH), ROWS(x, WIDTH), width, scale);
    ops->rmsnorm_backward_weight(tensor_1d(dw, s, WIDTH), ROWS(dy, WIDTH), ROWS(x, WIDTH), scale);
    ops->rope_forward(tensor_3d(part(rope, f * HEADS * HEAD_DIM, s), s, rows, HEADS, HEAD_DIM), positions + first,
                      10000);
    ops->rope_backward(tensor_3d(part(back, f * HEADS * HEAD_DIM, s), s, rows, HEADS, HEAD_DIM), positions + first,
                       500);
    ops->swiglu_forward(ROWS(a, WIDTH), ROWS(x, WIDTH), ROWS(dy, WIDTH));
    ops->swiglu_backward(ROWS(dg, WIDTH), ROWS(du, WIDTH), ROWS(y, WIDTH), ROWS(x, WIDTH), ROWS(dy, WIDTH));
    ops->sigmoid_forward(ROWS(sigmoid, WIDTH), ROWS(x, WIDTH));
    ops->sigmoid_backward(ROWS(d_sigmoid, WIDTH), ROWS(dy, WIDTH), ROWS(sigmoid, WIDTH));
    ops->softmax_forward(ROWS(share, WIDTH), ROWS(x, WIDTH));
    ops->softmax_backward(ROWS(d_share, WIDTH), ROWS(dy, WIDTH), ROWS(share, WIDTH));
    ops->exponential(ROWS(power, WIDTH), ROWS(x, WIDTH));
    ops->logarithm(ROWS(logarithm, WIDTH), ROWS(power, WIDTH));
    ops->log_sum_exp(tensor_1d(part(all, f, s), s, rows), ROWS(x, WIDTH));
    ops->bias_forward(ROWS(biased, WIDTH), width);
    ops->bias_backward(tensor_1d(db, s, WIDTH), ROWS(dy, WIDTH));
    ops->cross_entropy_forward(tensor_1d(part(loss, f, s), s, rows), lses, ROWS(logits, VOCABULARY), tokens + first);
    ops->cross_entropy_backward(ROWS(dlogits, VOCABULARY), ROWS(logits, VOCABULARY), lses, tokens + first,
                                tensor_1d(part(weight, f, s), s, rows));
    ops->cross_entropy_backward(ROWS(logits, VOCABULARY), ROWS(logits, VOCABULARY), lses, tokens + first,
                                tensor_1d(part(weight, f, s), s, rows));
    ck_assert(same_bits(part(logits, f * VOCABULARY, s), part(dlogits, f * VOCABULARY, s), (size_t)rows * VOCABULARY,
                        s));
    free(x), free(dy), free(w), free(table), free(logits), free(weight);
}

static void rows_inputs(int32_t *tokens, int32_t *positions)
{
    for (int t = 0; t < T_ROWS; t++) {
        tokens[t] = (t * t * 5 + 3) % VOCABULARY;
        positions[t] = t % 5 == 4 ? 1000003 - t : t * 257 % 300; /* with clashes in a small direct-mapped table */
    }
}

/* All variants of every row-wise operation give the same bits, and row by row as all at once; the gradient of
 * cross-entropy may overwrite its logits. */
START_TEST(rows_and_variants)
{
    int32_t tokens[T_ROWS], positions[T_ROWS];
    rows_inputs(tokens, positions);
    for (int s = 0; s < 2; s++) {
        const struct ops *tables[3];
        const int count = variants(storages[s], tables);
        struct outputs first = {0};
        run_rows(tables[0], &first, tokens, positions, 0, T_ROWS);
        for (int t = 1; t < 2 * count; t++) {
            struct outputs out = {0};
            run_rows(tables[t % count], &out, tokens, positions, 0, t < count ? T_ROWS : 1);
            for (int64_t row = 1; t >= count && row < T_ROWS; row++)
                run_rows(tables[t % count], &out, tokens, positions, row, 1);
            for (int i = 0; i < first.count; i++)
                ck_assert_msg(same_bits(out.at[i], first.at[i], first.n[i], storages[s]), "%s round %d",
                              first.name[i], t);
            outputs_free(&out);
        }
        outputs_free(&first);
    }
}
END_TEST

/* All variants of every operation on flat arrays give the same bits at every length around the lanes. */
START_TEST(flat_variants)
{
    static const size_t lengths[] = {0, 1, 2, 7, 8, 15, 16, 17, 31, 33, 100, 1003};
    for (int s = 0; s < 2; s++) {
        const enum format f = storages[s];
        const struct ops *tables[3];
        const int count = variants(f, tables);
        for (size_t l = 0; l < sizeof(lengths) / sizeof(*lengths); l++) {
            const size_t n = lengths[l];
            struct outputs first = {0};
            double sums[6], first_sums[6];
            for (int t = 0; t < count; t++) {
                struct outputs out = {0};
                void *a = numbers(n, f, 1, 7), *b = numbers(n, f, 2, 1e-3);
                if (n == 33) /* numbers at the ends; squares of the last two pass what the type can hold */
                    put(a, 3, f, NAN), put(b, 5, f, INFINITY), put(a, 7, f, -0.0), put(b, 7, f, -0.0),
                        put(b, 17, f, f == FORMAT_FP64 ? 0x1p-1074 : 0x1p-149), put(a, 32, f, f == FORMAT_FP64 ? 0x1p600 : 0x1p70),
                        put(b, 32, f, f == FORMAT_FP64 ? -0x1p600 : -0x1p70);
                tables[t]->vector_add(output(&out, "add", n, f, 3), a, b, n);
                tables[t]->vector_scale(output(&out, "scale", n, f, 4), 1 / 3.0, n);
                tables[t]->vector_divide(output(&out, "divide", n, f, 5), 7, n);
                void *p = output(&out, "p", n, f, 6), *m = output(&out, "m", n, f, 7), *v = output(&out, "v", n, f, 8);
                for (size_t i = 0; i < n; i++)
                    put(v, i, f, fabs(get(v, i, f)));
                tables[t]->adamw_update(p, a, m, v, n, 0.7, 1e-3, 0.9, 0.95, 1e-8, 0.1, 13);
                tables[t]->sgd_update(p, b, m, n, 1.3, 1e-2, 0.9, 0.01, 2);
                sums[0] = tables[t]->vector_sum_squares(a, n);
                tables[t]->vector_sketch(sums + 1, a, n);
                ck_assert(same_bits(sums + 5, sums, 1, FORMAT_FP64));
                if (t == 0) {
                    first = out;
                    memcpy(first_sums, sums, sizeof(sums));
                } else {
                    for (int i = 0; i < out.count; i++)
                        ck_assert_msg(same_bits(out.at[i], first.at[i], n, f), "%s at %zu", out.name[i], n);
                    ck_assert(same_bits(sums, first_sums, 6, FORMAT_FP64));
                    outputs_free(&out);
                }
                free(a), free(b);
            }
            outputs_free(&first);
        }
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_variants");
    TCase *tests = tcase_create("variants");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, rows_and_variants);
    tcase_add_test(tests, flat_variants);
    suite_add_tcase(suite, tests);
    return run_suite(suite, CK_NOFORK);
}
