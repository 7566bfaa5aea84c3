/* simd: vectors of the CPU path's own width, with exactly the operations that kernels need.
 *
 * vec_f32 and vec_f64 are GCC vector types, so + - * / and comparisons are the compiler's; here is what has
 * no operator. SIMD_LEVEL 2 is AVX-512 (64 bytes), 1 is AVX2 with FMA (32), 0 is anything else (16 bytes,
 * written as loops over the elements). Every function gives the same value for an element at every level:
 *   fma     a*b + c rounded once
 *   max     a > b ? a : b  (so b where either is a NaN)       min  a < b ? a : b
 *   select  mask ? a : b, mask all ones or all zeros an element (what a comparison gives)
 *   load_part, store_part   the first `count` elements; a load gives +0 for the rest; count may be <= 0 or
 *                           more than the width. Memory past the count is not touched. */
#ifndef MODEL_KERNELS_SIMD_H
#define MODEL_KERNELS_SIMD_H

#include <stdint.h>
#include <string.h>

#define SIMD_PASTE_2(a, b) a##b
#define SIMD_PASTE(a, b) SIMD_PASTE_2(a, b)
#define SIMD_LEVEL_plain 0
#define SIMD_LEVEL_avx2 1
#define SIMD_LEVEL_avx512 2
#define SIMD_LEVEL SIMD_PASTE(SIMD_LEVEL_, VARIANT_CPU)

#if SIMD_LEVEL == 2
#include <immintrin.h>
#define SIMD_BYTES 64
#define SIMD_MM(name) _mm512_##name
#elif SIMD_LEVEL == 1
#include <immintrin.h>
#define SIMD_BYTES 32
#define SIMD_MM(name) _mm256_##name
#else
#define SIMD_BYTES 16
#endif

/* SIMD_UNROLL stands before a loop of known length: unroll it whole. (clang unrolls a mere count too late to keep
 * arrays in registers.) SIMD_SPECIALIZE: a function to be compiled for each set of constant arguments. Under
 * sanitizers neither: their checks, so multiplied, take minutes to compile. */
#ifdef __clang__
#define SIMD_SANITIZED (__has_feature(address_sanitizer) || __has_feature(undefined_behavior_sanitizer) || \
                        __has_feature(memory_sanitizer) || __has_feature(thread_sanitizer))
#elif defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SIMD_SANITIZED 1
#else
#define SIMD_SANITIZED 0
#endif
#define SIMD_PRAGMA(text) SIMD_PRAGMA_2(text)
#define SIMD_PRAGMA_2(text) _Pragma(#text)
#if SIMD_SANITIZED
#define SIMD_UNROLL(n)
#define SIMD_SPECIALIZE static __attribute__((noinline))
#else
#ifdef __clang__
#define SIMD_UNROLL(n) SIMD_PRAGMA(clang loop unroll(full))
#else
#define SIMD_UNROLL(n) SIMD_PRAGMA(GCC unroll n)
#endif
#define SIMD_SPECIALIZE static inline __attribute__((always_inline))
#endif

#define SIMD_INLINE static inline __attribute__((always_inline))

typedef float vec_f32 __attribute__((vector_size(SIMD_BYTES)));
typedef double vec_f64 __attribute__((vector_size(SIMD_BYTES)));
typedef int32_t ivec_f32 __attribute__((vector_size(SIMD_BYTES)));
typedef int64_t ivec_f64 __attribute__((vector_size(SIMD_BYTES)));
typedef uint32_t uvec_f32 __attribute__((vector_size(SIMD_BYTES)));
typedef uint64_t uvec_f64 __attribute__((vector_size(SIMD_BYTES)));

/* What is the same at every level. */
#define SIMD_COMMON(T, real) \
    SIMD_INLINE vec_##T vec_load_##T(const real *p) \
    { \
        vec_##T v; \
        memcpy(&v, p, sizeof(v)); \
        return v; \
    } \
    SIMD_INLINE void vec_store_##T(real *p, vec_##T v) \
    { \
        memcpy(p, &v, sizeof(v)); \
    } \
    SIMD_INLINE vec_##T vec_select_##T(ivec_##T mask, vec_##T a, vec_##T b) \
    { \
        return (vec_##T)((mask & (ivec_##T)a) | (~mask & (ivec_##T)b)); \
    }

SIMD_COMMON(f32, float)
SIMD_COMMON(f64, double)

#if SIMD_LEVEL > 0
#define SIMD_LEVELED(T, real, S) \
    SIMD_INLINE vec_##T vec_set_##T(real x) \
    { \
        return SIMD_MM(set1_##S)(x); \
    } \
    SIMD_INLINE vec_##T vec_fma_##T(vec_##T a, vec_##T b, vec_##T c) \
    { \
        return SIMD_MM(fmadd_##S)(a, b, c); \
    } \
    SIMD_INLINE vec_##T vec_max_##T(vec_##T a, vec_##T b) \
    { \
        return SIMD_MM(max_##S)(a, b); \
    } \
    SIMD_INLINE vec_##T vec_min_##T(vec_##T a, vec_##T b) \
    { \
        return SIMD_MM(min_##S)(a, b); \
    } \
    SIMD_INLINE vec_##T vec_sqrt_##T(vec_##T a) \
    { \
        return SIMD_MM(sqrt_##S)(a); \
    }
#else
#define SIMD_EACH(T, real, expression) \
    vec_##T v; \
    for (int i = 0; i < (int)(SIMD_BYTES / sizeof(real)); i++) \
        v[i] = (expression); \
    return v
#define SIMD_LEVELED(T, real, S) \
    SIMD_INLINE vec_##T vec_set_##T(real x) \
    { \
        SIMD_EACH(T, real, x); \
    } \
    SIMD_INLINE vec_##T vec_fma_##T(vec_##T a, vec_##T b, vec_##T c) \
    { \
        SIMD_EACH(T, real, sizeof(real) == 4 ? (real)__builtin_fmaf((float)a[i], (float)b[i], (float)c[i]) \
                                             : (real)__builtin_fma(a[i], b[i], c[i])); \
    } \
    SIMD_INLINE vec_##T vec_max_##T(vec_##T a, vec_##T b) \
    { \
        SIMD_EACH(T, real, a[i] > b[i] ? a[i] : b[i]); \
    } \
    SIMD_INLINE vec_##T vec_min_##T(vec_##T a, vec_##T b) \
    { \
        SIMD_EACH(T, real, a[i] < b[i] ? a[i] : b[i]); \
    } \
    SIMD_INLINE vec_##T vec_sqrt_##T(vec_##T a) \
    { \
        SIMD_EACH(T, real, sizeof(real) == 4 ? (real)__builtin_sqrtf((float)a[i]) : (real)__builtin_sqrt(a[i])); \
    }
#endif

SIMD_LEVELED(f32, float, ps)
SIMD_LEVELED(f64, double, pd)

/* Loads and stores of a part: a masked move, or a loop over what is there. */
#if SIMD_LEVEL == 2
#define SIMD_MASK(T, count) ((count) <= 0 ? 0 : (1u << (count)) - 1)
#define SIMD_LOAD_MASKED(T, S, p, count) SIMD_MM(maskz_loadu_##S)(SIMD_MASK(T, count), p)
#define SIMD_STORE_MASKED(T, S, p, count, v) SIMD_MM(mask_storeu_##S)(p, SIMD_MASK(T, count), v)
#elif SIMD_LEVEL == 1
static const int32_t simd_mask_f32[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
static const int64_t simd_mask_f64[8] = {-1, -1, -1, -1};
#define SIMD_MASK(T, count) \
    _mm256_loadu_si256((const void *)(simd_mask_##T + ((count) <= 0 ? SIMD_WIDTH_##T : SIMD_WIDTH_##T - (count))))
enum { SIMD_WIDTH_f32 = 8, SIMD_WIDTH_f64 = 4 };
#define SIMD_LOAD_MASKED(T, S, p, count) SIMD_MM(maskload_##S)(p, SIMD_MASK(T, count))
#define SIMD_STORE_MASKED(T, S, p, count, v) SIMD_MM(maskstore_##S)(p, SIMD_MASK(T, count), v)
#else
#define SIMD_ELEMENTS(T, real) \
    SIMD_INLINE vec_##T simd_load_elements_##T(const real *p, int64_t count) \
    { \
        vec_##T v = {0}; \
        for (int i = 0; i < (int)(SIMD_BYTES / sizeof(real)) && i < count; i++) \
            v[i] = p[i]; \
        return v; \
    } \
    SIMD_INLINE void simd_store_elements_##T(real *p, int64_t count, vec_##T v) \
    { \
        for (int i = 0; i < (int)(SIMD_BYTES / sizeof(real)) && i < count; i++) \
            p[i] = v[i]; \
    } \
    SIMD_INLINE vec_##T simd_keep_elements_##T(vec_##T v, int64_t count) \
    { \
        for (int i = 0; i < (int)(SIMD_BYTES / sizeof(real)); i++) \
            v[i] = i < count ? v[i] : 0; \
        return v; \
    }
SIMD_ELEMENTS(f32, float)
SIMD_ELEMENTS(f64, double)
#define SIMD_LOAD_MASKED(T, S, p, count) simd_load_elements_##T(p, count)
#define SIMD_STORE_MASKED(T, S, p, count, v) simd_store_elements_##T(p, count, v)
#endif

#define SIMD_PART(T, real, S) \
    SIMD_INLINE vec_##T vec_load_part_##T(const real *p, int64_t count) \
    { \
        if (count >= (int64_t)(SIMD_BYTES / sizeof(real))) \
            return vec_load_##T(p); \
        return SIMD_LOAD_MASKED(T, S, p, count); \
    } \
    SIMD_INLINE void vec_store_part_##T(real *p, vec_##T v, int64_t count) \
    { \
        if (count >= (int64_t)(SIMD_BYTES / sizeof(real))) \
            vec_store_##T(p, v); \
        else \
            SIMD_STORE_MASKED(T, S, p, count, v); \
    }

SIMD_PART(f32, float, ps)
SIMD_PART(f64, double, pd)

/* The same with the mask made once, for loops: mask_first(count), 0 <= count <= width, then load_mask, store_mask, and
 * keep_mask: +0 for the rest. */
#if SIMD_LEVEL == 2
#define SIMD_MASKED(T, real, S, bits) \
    typedef __mmask##bits mask_##T; \
    SIMD_INLINE mask_##T mask_first_##T(int64_t count) \
    { \
        return (mask_##T)((1u << count) - 1); \
    } \
    SIMD_INLINE vec_##T vec_load_mask_##T(const real *p, mask_##T mask) \
    { \
        return _mm512_maskz_loadu_##S(mask, p); \
    } \
    SIMD_INLINE void vec_store_mask_##T(real *p, vec_##T v, mask_##T mask) \
    { \
        _mm512_mask_storeu_##S(p, mask, v); \
    } \
    SIMD_INLINE vec_##T vec_keep_mask_##T(vec_##T v, mask_##T mask) \
    { \
        return _mm512_maskz_mov_##S(mask, v); \
    }
SIMD_MASKED(f32, float, ps, 16)
SIMD_MASKED(f64, double, pd, 8)
#else
#if SIMD_LEVEL == 1
#define SIMD_MASK_OF(T, count) SIMD_MASK(T, count)
#define SIMD_MASK_TYPE(T) __m256i
#define SIMD_LOAD_BY(T, S, p, mask) SIMD_MM(maskload_##S)(p, mask)
#define SIMD_KEEP_BY(T, S, v, mask) (vec_##T)((ivec_##T)(v) & (ivec_##T)(mask))
#define SIMD_STORE_BY(T, S, p, mask, v) SIMD_MM(maskstore_##S)(p, mask, v)
#else
#define SIMD_MASK_OF(T, count) (count)
#define SIMD_MASK_TYPE(T) int64_t
#define SIMD_LOAD_BY(T, S, p, mask) simd_load_elements_##T(p, mask)
#define SIMD_KEEP_BY(T, S, v, mask) simd_keep_elements_##T(v, mask)
#define SIMD_STORE_BY(T, S, p, mask, v) simd_store_elements_##T(p, mask, v)
#endif
#define SIMD_MASKED(T, real, S) \
    typedef SIMD_MASK_TYPE(T) mask_##T; \
    SIMD_INLINE mask_##T mask_first_##T(int64_t count) \
    { \
        return SIMD_MASK_OF(T, count); \
    } \
    SIMD_INLINE vec_##T vec_load_mask_##T(const real *p, mask_##T mask) \
    { \
        return SIMD_LOAD_BY(T, S, p, mask); \
    } \
    SIMD_INLINE void vec_store_mask_##T(real *p, vec_##T v, mask_##T mask) \
    { \
        SIMD_STORE_BY(T, S, p, mask, v); \
    } \
    SIMD_INLINE vec_##T vec_keep_mask_##T(vec_##T v, mask_##T mask) \
    { \
        return SIMD_KEEP_BY(T, S, v, mask); \
    }
SIMD_MASKED(f32, float, ps)
SIMD_MASKED(f64, double, pd)
#endif

#endif
