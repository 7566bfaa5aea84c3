/* test_kernels: values of the row-wise and elementwise kernel operations and of the elementary functions. */
#define VARIANT_CPU plain /* elementary.h is the same at every width: test_kernels_variants compares them */
#include "tests/kernels_support.h"
#include "tests/support/run_suite.h"
#include <float.h>

#include "model/kernels/elementary.h"
#include "model/precision.h"
#include "sim/random.h"

enum { T_ROWS = 19, HEADS = 3, HEAD_DIM = 22, VOCABULARY = 91 };

static void check_near(double value, double expected, double tolerance)
{
    ck_assert_msg(fabs(value - expected) <= tolerance, "%.17g is not %.17g within %g", value, expected, tolerance);
}

/* |value - exact| in units of exact's last place, for numbers of `bits` with the given least exponent */
static double ulps(long double value, long double exact, int bits, int least)
{
    if (isnan(value) || isnan(exact))
        return isnan(value) && isnan(exact) ? 0 : INFINITY;
    if (isinf(value) || isinf(exact))
        return value == exact ? 0 : INFINITY;
    int exponent;
    frexpl(exact, &exponent);
    exponent -= bits;
    return (double)(fabsl(value - exact) / ldexpl(1, exponent < least ? least : exponent));
}

/* exp, log, sin and cos have the errors that their file states, and the right special values. */
START_TEST(elementary_accuracy)
{
    double worst[6] = {0};
    for (size_t i = 0; i < 200000; i++) {
        const double u = coded(i, 1);
        float f = (float)(u * 87), g = (float)exp(u * 87);
        worst[0] = fmax(worst[0], ulps(exp_f32(vec_set_f32(f))[0], expl(f), 24, -149));
        worst[1] = fmax(worst[1], ulps(log_f32(vec_set_f32(g))[0], logl(g), 24, -149));
        double d = u * 708, e = i % 2 ? exp(d) : 1 + u * 0.5;
        worst[2] = fmax(worst[2], ulps(exp_f64(vec_set_f64(d))[0], expl(d), 53, -1074));
        worst[3] = fmax(worst[3], ulps(log_f64(vec_set_f64(e))[0], logl(e), 53, -1074));
        double x = i % 3 == 0 ? u * 0x1p20 : i % 3 == 1 ? u * 4 : (double)(long)(u * 600000) * 1.5707963267948966;
        vec_f64 sine, cosine;
        sincos_f64(vec_set_f64(x), &sine, &cosine);
        worst[4] = fmax(worst[4], ulps(sine[0], sinl(x), 53, -1074));
        worst[5] = fmax(worst[5], ulps(cosine[0], cosl(x), 53, -1074));
    }
    for (int i = 0; i < 6; i++)
        ck_assert_msg(worst[i] < 1.1, "function %d: %g ulp", i, worst[i]);
    for (int i = 0; i < 6 && getenv("SHOW_ACCURACY"); i++)
        printf("function %d: %.3f ulp\n", i, worst[i]);
    for (double x = -746; x < -707; x += 0.37) /* subnormal results: one rounding more */
        ck_assert_double_le(ulps(exp_f64(vec_set_f64(x))[0], expl(x), 53, -1074), 1.01);
    for (float x = -104; x < -86; x += 0.037f)
        ck_assert_double_le(ulps(exp_f32(vec_set_f32(x))[0], expl(x), 24, -149), 1.01);
    static const double specials[] = {0, -0.0, INFINITY, -INFINITY, NAN, 1, 1e-310, 5e-324, 1e-40, 1e300, -3, 709.7,
                                      88.7, 710, -1e9};
    for (size_t i = 0; i < sizeof(specials) / sizeof(*specials); i++) {
        const double x = specials[i];
        const float f = (float)x;
        ck_assert_double_le(ulps(exp_f64(vec_set_f64(x))[0], exp(x), 53, -1074), 1);
        ck_assert_double_le(ulps(exp_f32(vec_set_f32(f))[0], (float)exp(f), 24, -149), 1);
        ck_assert_double_le(ulps(log_f64(vec_set_f64(x))[0], log(x), 53, -1074), 1);
        ck_assert_double_le(ulps(log_f32(vec_set_f32(f))[0], (float)log(f), 24, -149), 1);
    }
    ck_assert(exp_f64(vec_set_f64(-INFINITY))[0] == 0 && exp_f32(vec_set_f32(-INFINITY))[0] == 0);
}
END_TEST

/* Losses and gradients of cross-entropy: exact log-sum-exp also at logits of +-1000; ignored rows are exact zeros. */
START_TEST(cross_entropy_values)
{
    int32_t tokens[T_ROWS];
    for (int t = 0; t < T_ROWS; t++)
        tokens[t] = t % 6 == 2 ? -1 : (t * t * 5 + 3) % VOCABULARY;
    for (int s = 0; s < 2; s++)
        for (int large = 0; large < 2; large++) {
            const enum format f = storages[s];
            struct error error = {0};
            const struct ops *ops = ops_get(f, NULL, "fixed", &error);
            void *logits = numbers(T_ROWS * VOCABULARY, f, 1, large ? 1000 : 4), *weight = numbers(T_ROWS, f, 2, 1);
            void *loss = numbers(T_ROWS, f, 3, 1), *lse = numbers(T_ROWS, f, 4, 1),
                *grad = numbers(T_ROWS * VOCABULARY, f, 5, 1);
            struct tensor l = tensor_2d(logits, f, T_ROWS, VOCABULARY), lses = tensor_1d(lse, f, T_ROWS);
            ops->cross_entropy_forward(tensor_1d(loss, f, T_ROWS), lses, l, tokens);
            ops->cross_entropy_backward(tensor_2d(grad, f, T_ROWS, VOCABULARY), l, lses, tokens,
                                        tensor_1d(weight, f, T_ROWS));
            const double eps = (f == FORMAT_FP64 ? 0x1p-53 : 0x1p-24) * (large ? 3000 : 40);
            for (size_t t = 0; t < T_ROWS; t++) {
                long double sum = 0;
                for (size_t v = 0; v < VOCABULARY; v++)
                    sum += expl(get(logits, t * VOCABULARY + v, f));
                for (size_t v = 0; v < VOCABULARY; v++) {
                    double p = (double)(expl(get(logits, t * VOCABULARY + v, f)) / sum) - ((int32_t)v == tokens[t]);
                    double expected = tokens[t] < 0 ? 0 : p * get(weight, t, f);
                    check_near(get(grad, t * VOCABULARY + v, f), expected, tokens[t] < 0 ? 0 : eps);
                    ck_assert(tokens[t] >= 0 || !signbit(get(grad, t * VOCABULARY + v, f)));
                }
                double expected = tokens[t] < 0 ? 0 : (double)logl(sum) - get(logits,
                                                                              t * VOCABULARY + (size_t)tokens[t], f);
                check_near(get(loss, t, f), expected, tokens[t] < 0 ? 0 : eps);
            }
            free(logits), free(weight), free(loss), free(lse), free(grad);
        }
}
END_TEST

/* A pair turns by position * base^(-2i/D), also a million positions on; backward turns it back. */
START_TEST(rope_values)
{
    static const int32_t positions[] = {0, 1, 7, 263, 1000000, 7, 519};
    enum { ROWS = 7, N = ROWS * HEADS * HEAD_DIM };
    for (int s = 0; s < 2; s++) {
        const enum format f = storages[s];
        struct error error = {0};
        const struct ops *ops = ops_get(f, NULL, "fixed", &error);
        void *x = numbers(N, f, 1, 1), *y = copy_of(x, N, f);
        ops->rope_forward(tensor_3d(y, f, ROWS, HEADS, HEAD_DIM), positions, 10000);
        for (size_t t = 0; t < ROWS; t++)
            for (size_t h = 0; h < HEADS; h++)
                for (size_t i = 0; i < HEAD_DIM / 2; i++) {
                    long double angle = positions[t] * powl(10000, -2.0L * i / HEAD_DIM);
                    size_t low = (t * HEADS + h) * HEAD_DIM + i, high = low + HEAD_DIM / 2;
                    long double c = cosl(angle), r = sinl(angle), a = get(x, low, f), b = get(x, high, f);
                    double tolerance = f == FORMAT_FP64 ? 4e-15 * (1 + (double)angle) : 2e-7;
                    check_near(get(y, low, f), (double)(a * c - b * r), tolerance);
                    check_near(get(y, high, f), (double)(b * c + a * r), tolerance);
                }
        ops->rope_backward(tensor_3d(y, f, ROWS, HEADS, HEAD_DIM), positions, 10000);
        for (size_t i = 0; i < N; i++)
            check_near(get(y, i, f), get(x, i, f), f == FORMAT_FP64 ? 4e-16 : 3e-7);
        free(x), free(y);
    }
}
END_TEST

/* sum of weights[i] * out[i], the loss whose gradient at out is weights */
static double weighted(const double *out, const double *weights, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += out[i] * weights[i];
    return sum;
}

/* rmsnorm, swiglu and bias by their formulas in fp64, and their gradients by central differences. */
START_TEST(formulas_and_differences)
{
    enum { R = 3, C = 21, N = R * C };
    struct error error = {0};
    const struct ops *ops = ops_get(FORMAT_FP64, NULL, "fixed", &error);
    const enum format f = FORMAT_FP64;
    double *x = numbers(N, f, 1, 2), *w = numbers(C, f, 2, 1), *u = numbers(N, f, 3, 1), *dy = numbers(N, f, 4, 1);
    double y[N], rstd[R], dx[N], dw[C] = {0}, a[N], dg[N], du[N], db[C] = {0}, scratch[N], ignored[R];
#define M(data) tensor_2d(data, f, R, C)
#define ROW(data) tensor_1d(data, f, C)
    ops->rmsnorm_forward(M(y), tensor_1d(rstd, f, R), M(x), ROW(w), 1e-2);
    ops->rmsnorm_backward_input(M(dx), M(dy), M(x), ROW(w), tensor_1d(rstd, f, R));
    ops->rmsnorm_backward_weight(ROW(dw), M(dy), M(x), tensor_1d(rstd, f, R));
    ops->swiglu_forward(M(a), M(x), M(u));
    ops->swiglu_backward(M(dg), M(du), M(dy), M(x), M(u));
    ops->bias_backward(ROW(db), M(dy));
    for (size_t t = 0; t < R; t++) {
        double squares = 0;
        for (size_t c = 0; c < C; c++)
            squares += x[t * C + c] * x[t * C + c];
        check_near(rstd[t], 1 / sqrt(squares / C + 1e-2), 1e-15);
        for (size_t c = 0; c < C; c++) {
            check_near(y[t * C + c], x[t * C + c] * rstd[t] * w[c], 1e-15);
            check_near(a[t * C + c], x[t * C + c] / (1 + exp(-x[t * C + c])) * u[t * C + c], 1e-15);
        }
    }
    const double h = 1e-5;
    for (size_t i = 0; i < N; i++) {
        double norm[2], gate[2], up[2], at = x[i], up_at = u[i];
        for (int side = 0; side < 2; side++) {
            x[i] = at + (side ? h : -h);
            ops->rmsnorm_forward(M(scratch), tensor_1d(ignored, f, R), M(x), ROW(w), 1e-2);
            norm[side] = weighted(scratch, dy, N);
            ops->swiglu_forward(M(scratch), M(x), M(u));
            gate[side] = weighted(scratch, dy, N);
            x[i] = at;
            u[i] = up_at + (side ? h : -h);
            ops->swiglu_forward(M(scratch), M(x), M(u));
            up[side] = weighted(scratch, dy, N);
            u[i] = up_at;
        }
        check_near(dx[i], (norm[1] - norm[0]) / (2 * h), 1e-8);
        check_near(dg[i], (gate[1] - gate[0]) / (2 * h), 1e-8);
        check_near(du[i], (up[1] - up[0]) / (2 * h), 1e-8);
    }
    for (size_t c = 0; c < C; c++) {
        double by_weight = 0, by_bias = 0;
        for (size_t t = 0; t < R; t++)
            by_weight += dy[t * C + c] * x[t * C + c] * rstd[t], by_bias += dy[t * C + c];
        check_near(dw[c], by_weight, 1e-14);
        check_near(db[c], by_bias, 1e-14);
    }
    free(x), free(w), free(u), free(dy);
}
END_TEST

/* Embedding rows are copied; their gradients add up, also where a token comes twice. */
START_TEST(embedding_values)
{
    enum { V = 5, C = 19, R = 4 };
    static const int32_t tokens[R] = {3, 0, 3, 4};
    struct error error = {0};
    const struct ops *ops = ops_get(FORMAT_FP64, NULL, "fixed", &error);
    double *w = numbers(V * C, FORMAT_FP64, 1, 1), *dy = numbers(R * C, FORMAT_FP64, 2, 1), y[R * C], dw[V * C] = {0};
    ops->embedding_forward(tensor_2d(y, FORMAT_FP64, R, C), tokens, tensor_2d(w, FORMAT_FP64, V, C));
    ops->embedding_backward(tensor_2d(dw, FORMAT_FP64, V, C), tokens, tensor_2d(dy, FORMAT_FP64, R, C));
    for (size_t c = 0; c < C; c++) {
        ck_assert(y[c] == w[3 * C + c] && y[C + c] == w[c] && y[2 * C + c] == w[3 * C + c] &&
                  y[3 * C + c] == w[4 * C + c]);
        ck_assert(dw[3 * C + c] == dy[c] + dy[2 * C + c] && dw[c] == dy[C + c] && dw[C + c] == 0);
    }
    free(w), free(dy);
}
END_TEST

/* Three steps of AdamW and of SGD equal the formulas written out in long double. */
START_TEST(optimizer_values)
{
    enum { N = 37 };
    for (int s = 0; s < 2; s++) {
        const enum format f = storages[s];
        struct error error = {0};
        const struct ops *ops = ops_get(f, NULL, "fixed", &error);
        void *p = numbers(N, f, 1, 1), *m = numbers(N, f, 2, 0), *v = numbers(N, f, 3, 0);
        void *sp = numbers(N, f, 4, 1), *sm = numbers(N, f, 5, 1), *plain = numbers(N, f, 6, 1);
        long double P[N], M[N] = {0}, W[N] = {0}, SP[N], SM[N] = {0}, L[N];
        for (size_t i = 0; i < N; i++)
            P[i] = get(p, i, f), SP[i] = get(sp, i, f), L[i] = get(plain, i, f);
        for (int step = 1; step <= 3; step++) {
            void *g = numbers(N, f, 10u + (unsigned)step, 0.1);
            ops->adamw_update(p, g, m, v, N, 0.5, 3e-3, 0.9, 0.95, 1e-8, 0.1, step);
            ops->sgd_update(sp, g, sm, N, 0.5, 2e-2, 0.8, 0.03, step);
            ops->sgd_update(plain, g, NULL, N, 0.5, 2e-2, 0, 0, step);
            for (size_t i = 0; i < N; i++) {
                long double G = 0.5L * get(g, i, f), D = G + 0.03L * SP[i];
                P[i] *= 1 - 3e-3L * 0.1L;
                M[i] = 0.9L * M[i] + 0.1L * G;
                W[i] = 0.95L * W[i] + 0.05L * G * G;
                P[i] -= 3e-3L / (1 - powl(0.9L, step)) * M[i] / (sqrtl(W[i]) / sqrtl(1 - powl(0.95L, step)) + 1e-8L);
                SM[i] = step == 1 ? D : 0.8L * SM[i] + D;
                SP[i] -= 2e-2L * SM[i];
                L[i] -= 2e-2L * G;
                const double tolerance = f == FORMAT_FP64 ? 1e-15 : 4e-7;
                check_near(get(p, i, f), (double)P[i], tolerance);
                check_near(get(sp, i, f), (double)SP[i], tolerance);
                check_near(get(plain, i, f), (double)L[i], tolerance);
            }
            free(g);
        }
        free(p), free(m), free(v), free(sp), free(sm), free(plain);
    }
}
END_TEST

/* A sketch is linear with signs +-1 that belong to the index alone, and four of them estimate a norm. */
START_TEST(sketch_values)
{
    enum { N = 300 };
    struct error error = {0};
    const struct ops *ops = ops_get(FORMAT_FP64, NULL, "fixed", &error);
    double x[N] = {0}, signs[4][N], ret[5], ones[4] = {0}, estimate = 0;
    for (size_t i = 0; i < N; i++) {
        x[i] = 3;
        ops->vector_sketch(ret, x, i + 1 + (i * 7) % (N - i)); /* whatever the length */
        ck_assert(ret[4] == 9);
        for (int q = 0; q < 4; q++) {
            ck_assert(fabs(ret[q]) == 3);
            signs[q][i] = ret[q] / 3;
            ones[q] += signs[q][i];
        }
        x[i] = 0;
    }
    for (int q = 0; q < 4; q++) { /* five standard deviations */
        ck_assert_double_le(fabs(ones[q]), 5 * sqrt(N));
        for (int r = 0; r < q; r++)
            ck_assert_double_le(fabs(weighted(signs[q], signs[r], N)), 5 * sqrt(N));
    }
    for (unsigned trial = 0; trial < 200; trial++) {
        double *y = numbers(N, FORMAT_FP64, 100 + trial, 1);
        ops->vector_sketch(ret, y, N);
        for (int q = 0; q < 4; q++) {
            check_near(ret[q], weighted(y, signs[q], N), 1e-12);
            estimate += ret[q] * ret[q] / ret[4] / 800;
        }
        free(y);
    }
    check_near(estimate, 1, 0.25);
}
END_TEST

/* vector_bits against the definition: from the highest to the lowest bit that is set. */
static int bits_by_definition(double value)
{
    int exponent, bits = 0;
    double rest = frexp(fabs(value), &exponent);
    while (rest != 0) {
        rest *= 2;
        if (rest >= 1) rest -= 1;
        bits++;
    }
    return bits;
}

START_TEST(significant_bits)
{
    struct random_stream stream = random_stream(37, "bits");
    double special[] = {0, -0.0, INFINITY, -INFINITY, NAN, 1, -1, 3, 0.1, DBL_MIN, DBL_MIN / 2, DBL_TRUE_MIN, 3 * DBL_TRUE_MIN, -DBL_MAX};
    for (size_t i = 0; i < 5000 + sizeof special / sizeof *special; i++) {
        uint64_t pattern = random_at(&stream, i) & ~((uint64_t)0) << i % 53;
        double value;
        memcpy(&value, &pattern, sizeof value);
        if (i >= 5000) value = special[i - 5000];
        float narrow = (float)value;
        int64_t values;
        bool counts = isfinite(value) && value != 0;
        ck_assert_int_eq(vector_bits(&value, 1, FORMAT_FP64, &values), counts ? bits_by_definition(value) : 0);
        ck_assert_int_eq(values, counts);
        counts = isfinite(narrow) && narrow != 0;
        ck_assert_int_eq(vector_bits(&narrow, 1, FORMAT_FP32, &values), counts ? bits_by_definition(narrow) : 0);
        ck_assert_int_eq(values, counts);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("kernels");
    TCase *tests = tcase_create("kernels");
    tcase_set_timeout(tests, 120);
    tcase_add_test(tests, elementary_accuracy);
    tcase_add_test(tests, cross_entropy_values);
    tcase_add_test(tests, rope_values);
    tcase_add_test(tests, formulas_and_differences);
    tcase_add_test(tests, embedding_values);
    tcase_add_test(tests, optimizer_values);
    tcase_add_test(tests, sketch_values);
    tcase_add_test(tests, significant_bits);
    suite_add_tcase(suite, tests);
    return run_suite(suite, CK_NOFORK);
}
