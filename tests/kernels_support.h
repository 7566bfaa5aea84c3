/* kernels_support: what the tests of the kernel operations share: variants, buffers, comparing bits. */
#ifndef TESTS_KERNELS_SUPPORT_H
#define TESTS_KERNELS_SUPPORT_H

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model/ops.h"

static const enum format storages[] = {FORMAT_FP32, FORMAT_FP64};

/* The fixed tables of a storage that this machine has; the first is plain. Returns how many. */
static inline int variants(enum format storage, const struct ops *ret[3])
{
    static const char *const paths[] = {"plain", "avx2", "avx512"};
    int count = 0;
    for (int i = 0; i < 3; i++) {
        struct error error = {0};
        const struct ops *ops = ops_get(storage, paths[i], "fixed", &error);
        if (ops)
            ret[count++] = ops;
    }
    ck_assert_int_gt(count, 0);
    ck_assert_str_eq(ret[0]->cpu_path, "plain");
    return count;
}

static inline size_t real_bytes(enum format storage)
{
    return storage == FORMAT_FP64 ? 8 : 4;
}

static inline double get(const void *data, size_t i, enum format storage)
{
    return storage == FORMAT_FP64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

static inline void put(void *data, size_t i, enum format storage, double value)
{
    if (storage == FORMAT_FP64)
        ((double *)data)[i] = value;
    else
        ((float *)data)[i] = (float)value;
}

/* A number in (-1, 1) coded by its place: never the same for two places of one buffer. */
static inline double coded(size_t i, unsigned salt)
{
    unsigned long long z = (i + 1) * 0x9e3779b97f4a7c15ull + salt * 0xd1342543de82ef95ull;
    z = (z ^ z >> 29) * 0xbf58476d1ce4e5b9ull;
    return (double)((z ^ z >> 32) >> 11) * 0x1p-52 - 1;
}

/* n coded numbers times scale, in memory of exactly their size (so that a sanitizer sees every overrun). */
static inline void *numbers(size_t n, enum format storage, unsigned salt, double scale)
{
    void *data = malloc(n * real_bytes(storage) + (n == 0));
    ck_assert_ptr_nonnull(data);
    for (size_t i = 0; i < n; i++)
        put(data, i, storage, coded(i, salt) * scale);
    return data;
}

static inline void *copy_of(const void *data, size_t n, enum format storage)
{
    void *copy = numbers(n, storage, 0, 0);
    memcpy(copy, data, n * real_bytes(storage));
    return copy;
}

/* The same bits, where every NaN is one. */
static inline bool same_bits(const void *a, const void *b, size_t n, enum format storage)
{
    for (size_t i = 0; i < n; i++) {
        double x = get(a, i, storage), y = get(b, i, storage);
        if (!(isnan(x) && isnan(y)) && (x != y || signbit(x) != signbit(y))) {
            fprintf(stderr, "element %zu of %zu: %a %a\n", i, n, x, y);
            return false;
        }
    }
    return true;
}

/* Frobenius distance over the reference's norm. */
static inline double relative_error(const void *a, const double *reference, size_t n, enum format storage)
{
    double difference = 0, norm = 0;
    for (size_t i = 0; i < n; i++) {
        double d = get(a, i, storage) - reference[i];
        difference += d * d;
        norm += reference[i] * reference[i];
    }
    return sqrt(difference) / (norm > 0 ? sqrt(norm) : 1);
}

#endif
