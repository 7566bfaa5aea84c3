/* test_kernels_gemm: matrix products have one order of sums, and the tables are chosen as documented. */
#include "tests/kernels_support.h"
#include "tests/support/run_suite.h"

struct shape { int64_t m, n, k; };

/* The definition: one fused chain an element, k ascending, from C or +0. */
static void naive(enum format s, bool ta, bool tb, struct shape d, const void *a, int64_t lda, const void *b,
                  int64_t ldb, bool accumulate, void *c, int64_t ldc)
{
    for (int64_t i = 0; i < d.m; i++)
        for (int64_t j = 0; j < d.n; j++) {
            double sum = accumulate ? get(c, (size_t)(i * ldc + j), s) : 0;
            for (int64_t p = 0; p < d.k; p++) {
                double x = get(a, (size_t)(ta ? p * lda + i : i * lda + p), s);
                double y = get(b, (size_t)(tb ? j * ldb + p : p * ldb + j), s);
                sum = s == FORMAT_FP64 ? fma(x, y, sum) : (double)fmaf((float)x, (float)y, (float)sum);
            }
            put(c, (size_t)(i * ldc + j), s, sum);
        }
}

struct product {
    enum format storage;
    struct shape shape;
    bool ta, tb;
    int64_t lda, ldb, ldc;
    size_t a_count, b_count, c_count;
    void *a, *b, *c;
};

/* Leading dimensions larger than needed by different amounts, and no memory past the last number of the last row. */
static struct product product_new(enum format s, struct shape d, bool ta, bool tb)
{
    struct product p = {.storage = s, .shape = d, .ta = ta, .tb = tb};
    int64_t a_rows = ta ? d.k : d.m, a_columns = ta ? d.m : d.k, b_rows = tb ? d.n : d.k, b_columns = tb ? d.k : d.n;
    p.lda = a_columns + 3, p.ldb = b_columns + 5, p.ldc = d.n + 7;
    p.a_count = (size_t)(a_rows && a_columns ? (a_rows - 1) * p.lda + a_columns : 0);
    p.b_count = (size_t)(b_rows && b_columns ? (b_rows - 1) * p.ldb + b_columns : 0);
    p.c_count = (size_t)(d.m && d.n ? (d.m - 1) * p.ldc + d.n : 0);
    p.a = numbers(p.a_count, s, 1, 1), p.b = numbers(p.b_count, s, 2, 1), p.c = numbers(p.c_count, s, 3, 1);
    return p;
}

static void product_free(struct product *p)
{
    free(p->a), free(p->b), free(p->c);
}

static void run(const struct ops *ops, const struct product *p, bool accumulate, void *c)
{
    ops->gemm(p->ta, p->tb, p->shape.m, p->shape.n, p->shape.k, p->a, p->lda, p->b, p->ldb, accumulate, c, p->ldc);
}

static void against_naive(enum format s, struct shape d)
{
    const struct ops *tables[3];
    const int count = variants(s, tables);
    for (int mode = 0; mode < 8; mode++) {
        struct product p = product_new(s, d, mode & 1, mode & 2);
        void *expected = copy_of(p.c, p.c_count, s);
        naive(s, p.ta, p.tb, d, p.a, p.lda, p.b, p.ldb, mode & 4, expected, p.ldc);
        for (int t = 0; t < count; t++) {
            void *c = copy_of(p.c, p.c_count, s);
            run(tables[t], &p, mode & 4, c);
            ck_assert_msg(same_bits(c, expected, p.c_count, s), "%s mode %d m %d n %d k %d", tables[t]->cpu_path, mode,
                          (int)d.m, (int)d.n, (int)d.k);
            free(c);
        }
        free(expected);
        product_free(&p);
    }
}

/* Every variant equals the definition bit for bit, for all transposes, accumulating or not, for empty and odd
 * sizes around every tile, with padded rows whose padding stays untouched. */
START_TEST(gemm_is_one_fused_chain)
{
    static const int64_t ms[] = {0, 1, 2, 3, 5, 7, 9, 11, 13, 14, 15, 16, 17, 18, 27, 29, 40, 61};
    static const int64_t ns[] = {0, 1, 3, 4, 9, 15, 17, 31, 33, 40};
    static const int64_t ks[] = {0, 1, 2, 3, 5, 6, 19};
    for (int s = 0; s < 2; s++)
        for (size_t i = 0; i < sizeof(ms) / sizeof(*ms); i++)
            for (size_t j = 0; j < sizeof(ns) / sizeof(*ns); j++)
                for (size_t k = 0; k < sizeof(ks) / sizeof(*ks); k++)
                    against_naive(storages[s], (struct shape){ms[i], ns[j], ks[k]});
}
END_TEST

/* The same where k exceeds the block that the kernel cuts it into, with several panels, where A is packed too, where its
 * rows are cut into blocks, and just below and above each of these. */
START_TEST(gemm_large_is_one_fused_chain)
{
    for (int s = 0; s < 2; s++) {
        against_naive(storages[s], (struct shape){67, 71, 301});
        against_naive(storages[s], (struct shape){5, 101, 519});
        against_naive(storages[s], (struct shape){101, 69, 257});
        against_naive(storages[s], (struct shape){83, 99, 256});
        against_naive(storages[s], (struct shape){103, 64, 255});
        against_naive(storages[s], (struct shape){311, 67, 71});
        against_naive(storages[s], (struct shape){337, 77, 262});
    }
}
END_TEST

/* Cutting k into two calls, the second accumulating, changes no bit; nor does computing each row or column alone. */
START_TEST(gemm_cuts_change_nothing)
{
    const struct shape d = {29, 47, 83};
    for (int s = 0; s < 2; s++) {
        const struct ops *tables[3];
        const int count = variants(storages[s], tables);
        const size_t bytes = real_bytes(storages[s]);
        for (int t = 0; t < count; t++) {
            struct product p = product_new(storages[s], d, false, true);
            void *whole = copy_of(p.c, p.c_count, storages[s]);
            run(tables[t], &p, false, whole);
            for (int64_t cut = 0; cut <= d.k; cut += 11) {
                char *c = copy_of(p.c, p.c_count, storages[s]);
                tables[t]->gemm(false, true, d.m, d.n, cut, p.a, p.lda, p.b, p.ldb, false, c, p.ldc);
                tables[t]->gemm(false, true, d.m, d.n, d.k - cut, (char *)p.a + (size_t)cut * bytes, p.lda,
                                (char *)p.b + (size_t)cut * bytes, p.ldb, true, c, p.ldc);
                ck_assert(same_bits(c, whole, p.c_count, storages[s]));
                free(c);
            }
            char *rows = copy_of(p.c, p.c_count, storages[s]), *columns = copy_of(p.c, p.c_count, storages[s]);
            for (int64_t i = 0; i < d.m; i++)
                tables[t]->gemm(false, true, 1, d.n, d.k, (char *)p.a + (size_t)(i * p.lda) * bytes, p.lda, p.b,
                                p.ldb, false, rows + (size_t)(i * p.ldc) * bytes, p.ldc);
            for (int64_t j = 0; j < d.n; j++)
                tables[t]->gemm(false, true, d.m, 1, d.k, p.a, p.lda, (char *)p.b + (size_t)(j * p.ldb) * bytes,
                                p.ldb, false, columns + (size_t)j * bytes, p.ldc);
            ck_assert(same_bits(rows, whole, p.c_count, storages[s]));
            ck_assert(same_bits(columns, whole, p.c_count, storages[s]));
            free(rows), free(columns), free(whole);
            product_free(&p);
        }
    }
}
END_TEST

/* Triples whose fused result is known by construction, where rounding the product first, or adding in a wider type
 * and rounding twice, gives another number. e is the half of the type's precision that a square still needs.
 *   (1 + 2^-e)^2 - (1 + 2^(1-e)) = 2^-2e                      the product alone would lose 2^-2e
 *   2^-p (1 - 2^-2h) + 1 + 2^(1-p), p bits of mantissa: just below the middle of 1 + 2^(1-p) and the next number,
 *   and nearer to it than a wider sum can tell: 1 + 2^(1-p), where rounding twice gives 1 + 2^(2-p)
 *   the same with the other sign */
struct fused { double a, b, c, result; };

static int fused_cases(enum format s, struct fused ret[3])
{
    const int e = s == FORMAT_FP64 ? 27 : 12, p = s == FORMAT_FP64 ? 53 : 24, h = s == FORMAT_FP64 ? 31 : 15;
    const double low = (1 + ldexp(1, -h)) * ldexp(1, -p / 2), high = (1 - ldexp(1, -h)) * ldexp(1, p / 2 - p);
    ret[0] = (struct fused){1 + ldexp(1, -e), 1 + ldexp(1, -e), -1 - ldexp(1, 1 - e), ldexp(1, -2 * e)};
    ret[1] = (struct fused){low, high, 1 + ldexp(1, 1 - p), 1 + ldexp(1, 1 - p)};
    ret[2] = (struct fused){-low, high, -1 - ldexp(1, 1 - p), -1 - ldexp(1, 1 - p)};
    return 3;
}

/* Every lane of every tile of every variant rounds a product and a sum once: element (i, j) is one fma of a case,
 * scaled by powers of two that differ by row and column, so that its true value is known. */
START_TEST(gemm_rounds_once)
{
    const struct shape d = {29, 47, 1};
    for (int s = 0; s < 2; s++) {
        const struct ops *tables[3];
        struct fused cases[3];
        const int count = variants(storages[s], tables), triples = fused_cases(storages[s], cases);
        for (int round = 0; round < 4 * triples; round++) {
            const struct fused *f = &cases[round / 4];
            const double sum = storages[s] == FORMAT_FP64 ? f->a * f->b + f->c
                                                          : (double)((float)(f->a * f->b) + (float)f->c);
            const double twice = storages[s] == FORMAT_FP64 ? sum : (double)(float)(f->a * f->b + f->c);
            ck_assert(sum != f->result || twice != f->result); /* the case tells */
            struct product p = product_new(storages[s], d, round & 1, round & 2);
            double *expected = malloc(p.c_count * sizeof(double));
            for (int64_t i = 0; i < d.m; i++)
                put(p.a, (size_t)(p.ta ? i : i * p.lda), storages[s], ldexp(f->a, (int)(i % 13) - 6));
            for (int64_t j = 0; j < d.n; j++)
                put(p.b, (size_t)(p.tb ? j * p.ldb : j), storages[s], ldexp(f->b, (int)(j % 17) - 8));
            for (int64_t i = 0; i < d.m; i++)
                for (int64_t j = 0; j < d.n; j++) {
                    const int scale = (int)(i % 13) - 6 + (int)(j % 17) - 8;
                    put(p.c, (size_t)(i * p.ldc + j), storages[s], ldexp(f->c, scale));
                    expected[i * p.ldc + j] = ldexp(f->result, scale);
                }
            for (int t = 0; t < count; t++) {
                void *c = copy_of(p.c, p.c_count, storages[s]);
                run(tables[t], &p, true, c);
                for (int64_t i = 0; i < d.m; i++)
                    for (int64_t j = 0; j < d.n; j++)
                        ck_assert_msg(get(c, (size_t)(i * p.ldc + j), storages[s]) == expected[i * p.ldc + j],
                                      "%s case %d at %d, %d: %a", tables[t]->cpu_path, round / 4, (int)i, (int)j,
                                      get(c, (size_t)(i * p.ldc + j), storages[s]));
                free(c);
            }
            free(expected);
            product_free(&p);
        }
    }
}
END_TEST

/* Numbers at the ends: what is no number, infinite, a negative zero, subnormal or near the largest goes through every
 * variant as through the definition (which NaN comes out is nobody's affair: they hash alike). */
START_TEST(gemm_special_numbers)
{
    for (int s = 0; s < 2; s++) {
        const bool wide = storages[s] == FORMAT_FP64;
        const double special[] = {-0.0, NAN, INFINITY, -INFINITY, wide ? 0x3p-1074 : 0x3p-149, wide ? -0x1p-1024 : -0x1p-128,
                                  wide ? 0x1.fp1023 : 0x1.fp127, wide ? -0x1p1022 : -0x1p126};
        const size_t kinds = sizeof(special) / sizeof(*special);
        const struct ops *tables[3];
        const int count = variants(storages[s], tables);
        for (int mode = 0; mode < 8; mode++) {
            struct product p = product_new(storages[s], (struct shape){23, 71, 37}, mode & 1, mode & 2);
            for (size_t i = 0; i < kinds * 3; i++) {
                put(p.a, i * 29 % p.a_count, storages[s], special[i % kinds]);
                put(p.b, i * 61 % p.b_count, storages[s], special[(i + i / kinds) % kinds]);
                put(p.c, i * 47 % p.c_count, storages[s], special[(i * 3 + 1) % kinds]);
            }
            void *expected = copy_of(p.c, p.c_count, storages[s]);
            naive(storages[s], p.ta, p.tb, p.shape, p.a, p.lda, p.b, p.ldb, mode & 4, expected, p.ldc);
            for (int t = 0; t < count; t++) {
                void *c = copy_of(p.c, p.c_count, storages[s]);
                run(tables[t], &p, mode & 4, c);
                ck_assert_msg(same_bits(c, expected, p.c_count, storages[s]), "%s mode %d", tables[t]->cpu_path, mode);
                free(c);
            }
            free(expected);
            product_free(&p);
        }
    }
}
END_TEST

/* OpenBLAS computes the same products up to rounding, empty ones included; it has no other operations of its own. */
START_TEST(openblas_agrees)
{
    static const struct shape shapes[] = {{0, 5, 3}, {5, 0, 3}, {5, 3, 0}, {1, 1, 1}, {13, 37, 59}, {70, 30, 110}};
    for (int s = 0; s < 2; s++) {
        struct error error = {0};
        const struct ops *fixed = ops_get(storages[s], NULL, "fixed", &error);
        const struct ops *blas = ops_get(storages[s], NULL, "openblas", &error);
        if (!blas) {
            ck_assert_int_eq(error.kind, ERROR_INPUT);
            ck_assert_ptr_null(ops_openblas_core());
            ck_assert_ptr_nonnull(strstr(error.hint, "libopenblas0-serial"));
            continue;
        }
        ck_assert_str_eq(blas->gemm_name, "openblas");
        ck_assert_ptr_nonnull(ops_openblas_core());
        ck_assert(blas->rmsnorm_forward == fixed->rmsnorm_forward && blas->storage == storages[s]);
        for (size_t i = 0; i < sizeof(shapes) / sizeof(*shapes); i++)
            for (int mode = 0; mode < 8; mode++) {
                struct product p = product_new(storages[s], shapes[i], mode & 1, mode & 2);
                void *c = copy_of(p.c, p.c_count, storages[s]);
                double *expected = malloc((p.c_count + 1) * sizeof(double));
                run(fixed, &p, mode & 4, c);
                for (size_t e = 0; e < p.c_count; e++)
                    expected[e] = get(c, e, storages[s]);
                run(blas, &p, mode & 4, p.c);
                double bound = storages[s] == FORMAT_FP64 ? 1e-13 : 1e-5;
                ck_assert_double_le(relative_error(p.c, expected, p.c_count, storages[s]), bound);
                free(c), free(expected);
                product_free(&p);
            }
    }
}
END_TEST

/* NULL takes the best path; what does not exist is an input error that lists what does. */
START_TEST(tables_are_chosen)
{
    struct error error = {0};
    const struct ops *best = ops_get(FORMAT_FP32, NULL, "fixed", &error), *tables[3];
    ck_assert_ptr_nonnull(best);
    ck_assert_int_eq(error.kind, ERROR_NONE);
    int count = variants(FORMAT_FP32, tables);
    ck_assert_str_eq(best->cpu_path, tables[count - 1]->cpu_path);
    for (int s = 0; s < 2; s++) {
        count = variants(storages[s], tables);
        for (int t = 0; t < count; t++) {
            ck_assert_str_eq(tables[t]->gemm_name, "fixed");
            ck_assert_int_eq(tables[t]->storage, storages[s]);
        }
    }
    ck_assert_ptr_null(ops_get(FORMAT_FP32, "sse9", "fixed", &error));
    ck_assert_int_eq(error.kind, ERROR_INPUT);
    ck_assert_ptr_nonnull(strstr(error.message, "sse9"));
    ck_assert_ptr_nonnull(strstr(error.message, "plain"));
    error = (struct error){0};
    ck_assert_ptr_null(ops_get(FORMAT_FP64, NULL, "slow", &error));
    ck_assert_int_eq(error.kind, ERROR_INPUT);
    ck_assert_ptr_nonnull(strstr(error.message, "fixed"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels_gemm");
    TCase *tests = tcase_create("gemm");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, gemm_is_one_fused_chain);
    tcase_add_test(tests, gemm_large_is_one_fused_chain);
    tcase_add_test(tests, gemm_cuts_change_nothing);
    tcase_add_test(tests, gemm_rounds_once);
    tcase_add_test(tests, gemm_special_numbers);
    tcase_add_test(tests, openblas_agrees);
    tcase_add_test(tests, tables_are_chosen);
    suite_add_tcase(suite, tests);
    return run_suite(suite, CK_NOFORK);
}
