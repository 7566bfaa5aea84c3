/* merging: what the merges share: numbers of rows, and rows times numbers. Each product and each sum is rounded to storage. */
#ifndef MODEL_CONTEXT_MERGING_H
#define MODEL_CONTEXT_MERGING_H

#include <math.h>

#include "model/context/context.h"
#include "sim/assertion.h"

static inline double row_get(struct tensor t, int64_t i) { return format_get(t.data, (size_t)i, t.storage); }
static inline void row_set(struct tensor t, int64_t i, double value) { format_set(t.data, (size_t)i, t.storage, value); }

/* One number a row, in scratch. */
static inline struct tensor merging_numbers(const struct merging *m, struct tensor like)
{
    int64_t rows = tensor_count(like);
    return tensor_1d(arena_alloc(m->scratch, (size_t)rows * format_storage_bytes(like.storage) + 1), like.storage, rows);
}

/* out[i, :] = a[i] out[i, :] + b[i] x[i, :]; a.data NULL: 1 */
static inline void merging_combine(struct tensor out, struct tensor a, struct tensor x, struct tensor b)
{
    int64_t rows = out.shape[0], width = out.shape[1];
#define COMBINE(real)                                                                                                    \
    for (int64_t i = 0; i < rows; i++) {                                                                                 \
        real *o = (real *)out.data + i * width;                                                                          \
        const real *y = (const real *)x.data + i * width, f = a.data ? ((const real *)a.data)[i] : 1, g = ((const real *)b.data)[i]; \
        for (int64_t c = 0; c < width; c++) o[c] = f * o[c] + g * y[c];                                                  \
    }
    ASSERT(out.dims == 2 && tensor_count(x) == rows * width && tensor_count(b) == rows);
    if (out.storage == FORMAT_FP64) { COMBINE(double) }
    else { COMBINE(float) }
#undef COMBINE
}

/* What is taken off before exp: the larger of two, or nothing where it is not (and where both are -inf). */
static inline double merging_shift(const struct merging *m, double a, double b)
{
    double larger = a > b ? a : b;
    return m->stable && larger != -INFINITY ? larger : 0;
}

/* lse = log(e^lse + e^other), -inf where both are; in place. */
static inline void merging_lse(const struct merging *m, struct tensor lse, struct tensor other)
{
    struct tensor shift = merging_numbers(m, lse), a = merging_numbers(m, lse), b = merging_numbers(m, lse);
    int64_t rows = tensor_count(lse);
    for (int64_t i = 0; i < rows; i++) {
        row_set(shift, i, merging_shift(m, row_get(lse, i), row_get(other, i)));
        row_set(a, i, row_get(lse, i) - row_get(shift, i));
        row_set(b, i, row_get(other, i) - row_get(shift, i));
    }
    m->ops->exponential(a, a);
    m->ops->exponential(b, b);
    m->ops->vector_add(a.data, a.data, b.data, (size_t)rows);
    m->ops->logarithm(a, a);
    m->ops->vector_add(lse.data, shift.data, a.data, (size_t)rows);
}

/* What a block's rows weigh: e^(lse - whole), 0 where the whole is -inf. */
static inline struct tensor merging_weights(const struct merging *m, struct tensor lse, struct tensor whole)
{
    struct tensor w = merging_numbers(m, lse);
    int64_t rows = tensor_count(lse);
    for (int64_t i = 0; i < rows; i++) row_set(w, i, row_get(whole, i) == -INFINITY ? -INFINITY : row_get(lse, i) - row_get(whole, i));
    m->ops->exponential(w, w);
    return w;
}

#endif
