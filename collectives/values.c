/* values: arithmetic on arrays of stored numbers, and what two ledgers have in common. */
#include "collectives/operation.h"

#include <math.h>
#include <string.h>

/* gcc makes vector code at -O2 only where it is asked to. */
#if defined(__GNUC__) && !defined(__clang__)
#define VECTORIZED __attribute__((optimize("O3")))
#else
#define VECTORIZED
#endif

void values_round(void *data, size_t count, enum format storage, enum format wire)
{
    if (count == 0 || !wire_narrows(storage, wire))
        return;
    if (format_traits[wire].storage == storage) {
        format_round_array(wire, data, count);
        return;
    }
    for (size_t i = 0; i < count; i++)
        format_set(data, i, storage, format_round(wire, format_get(data, i, storage)));
}

void values_copy(void *to, const void *from, size_t count, enum format storage)
{
    if (count > 0 && to != from)
        memmove(to, from, count * format_storage_bytes(storage));
}

/* A NaN on either side is the maximum, and of zeros +0 unless both are -0: the same bits in any order. */
#define DEFINE_VALUES(type, suffix) \
    VECTORIZED static void add_to_##suffix(type *restrict to, const type *restrict b, size_t count) \
    { \
        for (size_t i = 0; i < count; i++) \
            to[i] = to[i] + b[i]; \
    } \
    VECTORIZED static void add_before_##suffix(const type *restrict a, type *restrict to, size_t count) \
    { \
        for (size_t i = 0; i < count; i++) \
            to[i] = a[i] + to[i]; \
    } \
    VECTORIZED static void add_two_##suffix(type *restrict to, const type *restrict a, const type *restrict b, \
                                            size_t count) \
    { \
        for (size_t i = 0; i < count; i++) \
            to[i] = a[i] + b[i]; \
    } \
    static void add_##suffix(type *to, const type *a, const type *b, size_t count) \
    { \
        if (to == a && to == b) \
            for (size_t i = 0; i < count; i++) \
                to[i] += to[i]; \
        else if (to == a) \
            add_to_##suffix(to, b, count); \
        else if (to == b) \
            add_before_##suffix(a, to, count); \
        else \
            add_two_##suffix(to, a, b, count); \
    } \
    static void maximum_##suffix(type *to, const type *left, const type *right, size_t count) \
    { \
        for (size_t i = 0; i < count; i++) { \
            type a = left[i], b = right[i]; \
            if (isnan(a) || isnan(b)) \
                to[i] = (type)NAN; \
            else if (a == 0 && b == 0) \
                to[i] = a + b; \
            else \
                to[i] = b > a ? b : a; \
        } \
    } \
    VECTORIZED static void divide_##suffix(type *data, size_t count, type divisor) \
    { \
        for (size_t i = 0; i < count; i++) \
            data[i] /= divisor; \
    }
DEFINE_VALUES(float, fp32)
DEFINE_VALUES(double, fp64)

void values_reduce(void *to, const void *a, const void *b, size_t count, enum format storage, enum reduce_op reduce)
{
    bool max = reduce == REDUCE_MAX;
    if (storage == FORMAT_FP64)
        (max ? maximum_fp64 : add_fp64)(to, a, b, count);
    else
        (max ? maximum_fp32 : add_fp32)(to, a, b, count);
}

void values_divide(void *data, size_t count, enum format storage, int divisor)
{
    if (storage == FORMAT_FP64)
        divide_fp64(data, count, (double)divisor);
    else
        divide_fp32(data, count, (float)divisor);
}

void ledger_common(struct ledger *to, const struct ledger *from)
{
    if (to->tag_sum == from->tag_sum && to->count == from->count)
        return;
    struct ledger both;
    ledger_init(&both);
    for (int i = 0; i < to->count; i++) {
        const struct ledger_term *a = &to->terms[i], *b = ledger_find(from, a->origin);
        if (!b)
            continue;
        const struct ledger_term *least = b->times < a->times ? b : a;
        ledger_add_term(&both, least->origin, least->times, least->scale);
    }
    ledger_copy(to, &both);
    ledger_done(&both);
}
