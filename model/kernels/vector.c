/* vector: elementwise operations and fp64 sums over n stored numbers.
 *
 * add, scale and divide round each result to storage once (the factor or divisor is rounded to storage first).
 * sum_squares: widened to fp64, 16 lanes (element i in lane i mod 16, a fused chain, i ascending), then
 * ((lane 0 + lane 1) + lane 2) + ...
 * sketch: ret[q] = sum_i sign_q(i) x_i for q < 4, ret[4] = sum_i x_i^2, in the same lanes and order; sign_q(i) is bit
 * 16 q + i mod 16 of a SplitMix64 word (Steele, Lea & Flood 2014) of i / 16: set means minus. The four random
 * projections of a - b are the differences of the sketches, so their mean square estimates ||a - b||^2
 * (Johnson & Lindenstrauss 1984; signs: Achlioptas 2003). */
#include <string.h>

#include "model/kernels/variant.h"

void FN(vector_add)(void *out_data, const void *a_data, const void *b_data, size_t count)
{
    real *out = out_data;
    const real *a = a_data, *b = b_data;
    const int64_t n = (int64_t)count;
    for (int64_t i = 0; i < n; i += VEC_WIDTH)
        vec_store_part(out + i, vec_load_part(a + i, n - i) + vec_load_part(b + i, n - i), n - i);
}

void FN(vector_scale)(void *x_data, double factor, size_t count)
{
    real *x = x_data;
    const int64_t n = (int64_t)count;
    const vec by = vec_set((real)factor);
    for (int64_t i = 0; i < n; i += VEC_WIDTH)
        vec_store_part(x + i, vec_load_part(x + i, n - i) * by, n - i);
}

void FN(vector_divide)(void *x_data, double divisor, size_t count)
{
    real *x = x_data;
    const int64_t n = (int64_t)count;
    const vec by = vec_set((real)divisor);
    for (int64_t i = 0; i < n; i += VEC_WIDTH)
        vec_store_part(x + i, vec_load_part(x + i, n - i) / by, n - i);
}

/* fp64 lanes, whatever the storage. */
enum { WIDE_WIDTH = SIMD_BYTES / 8, WIDE_VECS = LANES / WIDE_WIDTH };

SIMD_INLINE vec_f64 load_wide(const real *x)
{
    typedef real narrow __attribute__((vector_size(WIDE_WIDTH * sizeof(real))));
    narrow v;
    memcpy(&v, x, sizeof(v));
    return __builtin_convertvector(v, vec_f64);
}

static double lanes_in_order(const vec_f64 lanes[WIDE_VECS])
{
    double sum = lanes[0][0];
    for (int i = 1; i < LANES; i++)
        sum += lanes[i / WIDE_WIDTH][i % WIDE_WIDTH];
    return sum;
}

/* The 16 numbers from i on, +0 past the end: x itself, or a copy in `tail`. */
SIMD_INLINE const real *group_at(const real *x, int64_t i, int64_t n, real tail[LANES])
{
    if (n - i >= LANES)
        return x + i;
    memset(tail, 0, LANES * sizeof(real));
    memcpy(tail, x + i, (size_t)(n - i) * sizeof(real));
    return tail;
}

double FN(vector_sum_squares)(const void *x_data, size_t count)
{
    const int64_t n = (int64_t)count;
    vec_f64 squares[WIDE_VECS] = {{0}};
    for (int64_t i = 0; i < n; i += LANES) {
        real tail[LANES];
        const real *x = group_at(x_data, i, n, tail);
        SIMD_UNROLL(8)
        for (int w = 0; w < WIDE_VECS; w++) {
            vec_f64 v = load_wide(x + w * WIDE_WIDTH);
            squares[w] = vec_fma_f64(v, v, squares[w]);
        }
    }
    return lanes_in_order(squares);
}

SIMD_INLINE uint64_t sign_word(uint64_t group)
{
    uint64_t z = (group + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void FN(vector_sketch)(double ret[5], const void *x_data, size_t count)
{
    const int64_t n = (int64_t)count;
    vec_f64 sums[4][WIDE_VECS] = {{{0}}}, squares[WIDE_VECS] = {{0}};
    uvec_f64 lane_up; /* moves bit l to the sign for lane l of a vector */
    for (int l = 0; l < WIDE_WIDTH; l++)
        lane_up[l] = (uint64_t)(63 - l);
    for (int64_t i = 0; i < n; i += LANES) {
        real tail[LANES];
        const real *x = group_at(x_data, i, n, tail);
        const uint64_t word = sign_word((uint64_t)i / LANES);
        SIMD_UNROLL(8)
        for (int w = 0; w < WIDE_VECS; w++) {
            vec_f64 v = load_wide(x + w * WIDE_WIDTH);
            squares[w] = vec_fma_f64(v, v, squares[w]);
            SIMD_UNROLL(4)
            for (int q = 0; q < 4; q++) {
                uvec_f64 bits = (uvec_f64)vec_set_f64(0) + (word >> (LANES * q + w * WIDE_WIDTH));
                uvec_f64 sign = bits << lane_up & UINT64_C(1) << 63;
                sums[q][w] += (vec_f64)((uvec_f64)v ^ sign);
            }
        }
    }
    for (int q = 0; q < 4; q++)
        ret[q] = lanes_in_order(sums[q]);
    ret[4] = lanes_in_order(squares);
}

/* Fletcher's two sums in 32 lanes: a += word, b += a, words taken 32 at a time, the rest filled with zeros. */
uint64_t FN(vector_checksum)(const void *x, size_t n)
{
    typedef uint32_t words __attribute__((vector_size(64)));
    enum { BLOCK = 2 * sizeof(words) };
    const size_t bytes = n * sizeof(real);
    words a[2] = {{0}}, b[2] = {{0}}, in[2];
    for (size_t at = 0; at < bytes; at += BLOCK) {
        if (bytes - at >= BLOCK) {
            memcpy(in, (const char *)x + at, BLOCK);
        } else {
            memset(in, 0, BLOCK);
            memcpy(in, (const char *)x + at, bytes - at);
        }
        for (int v = 0; v < 2; v++) {
            a[v] += in[v];
            b[v] += a[v];
        }
    }
    uint64_t sum = n;
    for (int v = 0; v < 2; v++) {
        for (int l = 0; l < 16; l++) {
            sum = (sum ^ ((uint64_t)a[v][l] << 32 | b[v][l])) * UINT64_C(0x9e3779b97f4a7c15);
            sum ^= sum >> 29;
        }
    }
    return sum;
}
