/* variant: what every kernel file is compiled as.
 *
 * The files of this folder are compiled once a variant, with
 *     -DVARIANT_REAL=float|double -DVARIANT_CPU=plain|avx2|avx512
 * and the flags of the CPU path (nothing; -mavx2 -mfma; -mavx512f -mavx512dq -mavx512vl -mavx512bw -mfma),
 * always with -ffp-contract=off -fno-math-errno. FN(gemm) is then gemm_f32_avx512 and so on; table.c
 * gathers a variant's functions into its `struct ops`.
 *
 * Why all variants give the same bits: every kernel states for each result which operations are done in
 * which order, down to where a product and a sum are fused (vec_fma) and where they are not. A wider
 * vector only does more results at once. Sums that would depend on the width run in LANES = 16 strided
 * lanes in every variant and end in one fixed tree. No kernel calls libm, except that the plain variant on a
 * CPU without fused multiply-add gets fma and fmaf from there, which are exact by definition. */
#ifndef MODEL_KERNELS_VARIANT_H
#define MODEL_KERNELS_VARIANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "model/attention_view.h"
#include "model/kernels/simd.h"
#include "model/kernels/workspace.h"
#include "sim/assertion.h"
#include "sim/tensor.h"

#define VARIANT_BITS_float 32
#define VARIANT_BITS_double 64
#define VARIANT_BITS SIMD_PASTE(VARIANT_BITS_, VARIANT_REAL)
typedef VARIANT_REAL real;

#define VARIANT_NAME_3(name, suffix, cpu) name##_##suffix##_##cpu
#define VARIANT_NAME_2(name, suffix, cpu) VARIANT_NAME_3(name, suffix, cpu)
#define FN(name) VARIANT_NAME_2(name, VARIANT_SUFFIX, VARIANT_CPU)

#define VARIANT_VEC_3(name, suffix) name##_##suffix
#define VARIANT_VEC_2(name, suffix) VARIANT_VEC_3(name, suffix)
#define VARIANT_VEC(name) VARIANT_VEC_2(name, VARIANT_SUFFIX)

#if VARIANT_BITS == 32
#define VARIANT_SUFFIX f32
#define VARIANT_STORAGE FORMAT_FP32
#else
#define VARIANT_SUFFIX f64
#define VARIANT_STORAGE FORMAT_FP64
#endif

/* The variant's own vector: `vec` holds VEC_WIDTH reals. */
typedef VARIANT_VEC(vec) vec;
typedef VARIANT_VEC(ivec) ivec;
typedef VARIANT_VEC(mask) vec_mask;
#define vec_load VARIANT_VEC(vec_load)
#define vec_load_part VARIANT_VEC(vec_load_part)
#define vec_store VARIANT_VEC(vec_store)
#define vec_store_part VARIANT_VEC(vec_store_part)
#define vec_set VARIANT_VEC(vec_set)
#define vec_fma VARIANT_VEC(vec_fma)
#define vec_max VARIANT_VEC(vec_max)
#define vec_sqrt VARIANT_VEC(vec_sqrt)
#define vec_select VARIANT_VEC(vec_select)
#define mask_first VARIANT_VEC(mask_first)
#define vec_load_mask VARIANT_VEC(vec_load_mask)
#define vec_store_mask VARIANT_VEC(vec_store_mask)
#define vec_keep_mask VARIANT_VEC(vec_keep_mask)
#define vec_exp VARIANT_VEC(exp)
#define vec_log VARIANT_VEC(log)

enum { VEC_WIDTH = SIMD_BYTES / sizeof(real), LANES = 16, LANE_VECS = LANES / VEC_WIDTH };

/* FOLD_n(v): elements n .. 2n-1 moved to 0 .. n-1; what else it holds does not matter. */
#define REST_1 , -1
#define REST_2 , -1, -1
#define REST_4 REST_2 REST_2
#define REST_8 REST_4 REST_4
#if SIMD_BYTES * 8 == VARIANT_BITS * 16
#define FOLD_8(v) __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15 REST_8)
#define FOLD_4(v) __builtin_shufflevector(v, v, 4, 5, 6, 7 REST_4 REST_8)
#define FOLD_2(v) __builtin_shufflevector(v, v, 2, 3 REST_2 REST_4 REST_8)
#define FOLD_1(v) __builtin_shufflevector(v, v, 1 REST_1 REST_2 REST_4 REST_8)
#elif SIMD_BYTES * 8 == VARIANT_BITS * 8
#define FOLD_4(v) __builtin_shufflevector(v, v, 4, 5, 6, 7 REST_4)
#define FOLD_2(v) __builtin_shufflevector(v, v, 2, 3 REST_2 REST_4)
#define FOLD_1(v) __builtin_shufflevector(v, v, 1 REST_1 REST_2 REST_4)
#elif SIMD_BYTES * 8 == VARIANT_BITS * 4
#define FOLD_2(v) __builtin_shufflevector(v, v, 2, 3 REST_2)
#define FOLD_1(v) __builtin_shufflevector(v, v, 1 REST_1 REST_2)
#else
#define FOLD_1(v) __builtin_shufflevector(v, v, 1 REST_1)
#endif

/* One number of 16 lanes by a commutative OF: lane i takes lane i + 8, then i + 4, i + 2, i + 1. */
#define LANES_TREE(name, OF) \
    SIMD_INLINE real name(const vec lanes[LANE_VECS]) \
    { \
        vec v[LANE_VECS]; \
        memcpy(v, lanes, sizeof(v)); \
        for (int half = LANE_VECS / 2; half > 0; half /= 2) \
            for (int l = 0; l < half; l++) \
                v[l] = OF(v[l], v[l + half]); \
        LANES_FOLD_8(OF) LANES_FOLD_4(OF) LANES_FOLD_2(OF) \
        return OF(v[0], FOLD_1(v[0]))[0]; \
    }
#ifdef FOLD_8
#define LANES_FOLD_8(OF) v[0] = OF(v[0], FOLD_8(v[0]));
#else
#define LANES_FOLD_8(OF)
#endif
#ifdef FOLD_4
#define LANES_FOLD_4(OF) v[0] = OF(v[0], FOLD_4(v[0]));
#else
#define LANES_FOLD_4(OF)
#endif
#ifdef FOLD_2
#define LANES_FOLD_2(OF) v[0] = OF(v[0], FOLD_2(v[0]));
#else
#define LANES_FOLD_2(OF)
#endif
#define LANES_ADD(a, b) ((a) + (b))
LANES_TREE(lanes_sum, LANES_ADD)
LANES_TREE(lanes_max, vec_max) /* which of two equal zeros comes out matters to no caller */

static inline real *reals(struct tensor t)
{
    ASSERT(t.storage == VARIANT_STORAGE && tensor_is_dense(t));
    return t.data;
}

/* The length of the last dimension, and how many rows of it there are. */
static inline int64_t row_length(struct tensor t)
{
    return t.shape[t.dims - 1];
}

static inline int64_t row_count(struct tensor t)
{
    int64_t rows = 1;
    for (int d = 0; d + 1 < t.dims; d++)
        rows *= t.shape[d];
    return rows;
}

#define OP(type, name, parameters) type FN(name) parameters;
#include "model/ops.def"
#undef OP

#endif
