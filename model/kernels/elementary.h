/* elementary: exp, log, sin, cos of our own, so that their bits are the same on every machine.
 *
 * All are straight-line code over a vector; an element's value depends on its argument alone. A scalar is
 * a vector of equal elements. Largest errors, measured against long double (tests/test_kernels.c):
 *   exp_f32, exp_f64   < 1.1 ulp; subnormal results are rounded twice; NaN and infinities as C's exp
 *   log_f32, log_f64   < 0.9 ulp; 0 gives -inf, a negative number NaN, subnormals are exact arguments
 *   sincos_f64         < 0.8 ulp for |x| <= 2^20
 *
 * exp:  n = round(x / ln 2), r = x - n ln 2 with ln 2 in two parts, e^r = 1 + (r + r^2 q(r)), times 2^n in
 *       two steps. log: x = 2^e m with m in [sqrt(1/2), sqrt 2), f = m - 1, s = f / (2 + f):
 *       log m = 2 atanh s = f - f^2/2 + s (f^2/2 + s^2 p(s^2)). sin, cos: x - n pi/2 with pi/2 in three parts and the
 *       rest of the subtraction carried along (Cody & Waite 1980, with fused multiply-add).
 * Coefficients: interpolation at the Chebyshev nodes of each reduced interval, in 300-bit arithmetic. */
#ifndef MODEL_KERNELS_ELEMENTARY_H
#define MODEL_KERNELS_ELEMENTARY_H

#include "model/kernels/simd.h"

/* One step of Horner's rule with a constant, for the type at hand. */
#define HORNER_F32(p, x, c) vec_fma_f32(p, x, vec_set_f32(c))
#define HORNER_F64(p, x, c) vec_fma_f64(p, x, vec_set_f64(c))

SIMD_INLINE vec_f32 exp_f32(vec_f32 x)
{
    const vec_f32 magic = vec_set_f32(0x1.8p23f); /* adding it rounds to an integer, in the low bits */
    x = vec_min_f32(vec_set_f32(89.0f), vec_max_f32(vec_set_f32(-104.0f), x)); /* beyond: inf, 0; NaN stays */
    vec_f32 shifted = vec_fma_f32(x, vec_set_f32(0x1.715476p+0f), magic);
    vec_f32 n = shifted - magic;
    vec_f32 r = vec_fma_f32(n, vec_set_f32(-0x1.62e4p-1f), x); /* exact: few enough bits */
    r = vec_fma_f32(n, vec_set_f32(-0x1.7f7d1cp-20f), r);
    vec_f32 q = vec_set_f32(0x1.6d110ap-10f);
    q = HORNER_F32(q, r, 0x1.120b6ep-7f);
    q = HORNER_F32(q, r, 0x1.55551ap-5f);
    q = HORNER_F32(q, r, 0x1.5554dcp-3f);
    q = HORNER_F32(q, r, 0x1p-1f);
    vec_f32 y = vec_fma_f32(r * r, q, r) + vec_set_f32(1.0f);
    uvec_f32 exponent = (uvec_f32)shifted - (uvec_f32)magic + 2 * 127;
    uvec_f32 half = exponent >> 1;
    return y * (vec_f32)(half << 23) * (vec_f32)((exponent - half) << 23);
}

SIMD_INLINE vec_f64 exp_f64(vec_f64 x)
{
    const vec_f64 magic = vec_set_f64(0x1.8p52);
    x = vec_min_f64(vec_set_f64(710.0), vec_max_f64(vec_set_f64(-746.0), x));
    vec_f64 shifted = vec_fma_f64(x, vec_set_f64(0x1.71547652b82fep+0), magic);
    vec_f64 n = shifted - magic;
    vec_f64 r = vec_fma_f64(n, vec_set_f64(-0x1.62e42fefa39efp-1), x);
    r = vec_fma_f64(n, vec_set_f64(-0x1.abc9e3b39803fp-56), r);
    vec_f64 q = vec_set_f64(0x1.af38a9b0ec855p-26);
    q = HORNER_F64(q, r, 0x1.289185613a3d6p-22);
    q = HORNER_F64(q, r, 0x1.71de0dae63bb3p-19);
    q = HORNER_F64(q, r, 0x1.a019b90d2ae7ap-16);
    q = HORNER_F64(q, r, 0x1.a01a01a7c41d5p-13);
    q = HORNER_F64(q, r, 0x1.6c16c1788bd90p-10);
    q = HORNER_F64(q, r, 0x1.11111111109b3p-7);
    q = HORNER_F64(q, r, 0x1.5555555553d63p-5);
    q = HORNER_F64(q, r, 0x1.5555555555556p-3);
    q = HORNER_F64(q, r, 0x1.0000000000001p-1);
    vec_f64 y = vec_fma_f64(r * r, q, r) + vec_set_f64(1.0);
    uvec_f64 exponent = (uvec_f64)shifted - (uvec_f64)magic + 2 * 1023;
    uvec_f64 half = exponent >> 1;
    return y * (vec_f64)(half << 52) * (vec_f64)((exponent - half) << 52);
}

SIMD_INLINE vec_f32 log_f32(vec_f32 x)
{
    const vec_f32 zero = {0}, one = vec_set_f32(1.0f), half = vec_set_f32(0.5f);
    const vec_f32 infinity = vec_set_f32(__builtin_inff());
    ivec_f32 small = (ivec_f32)(x < vec_set_f32(0x1p-126f));
    vec_f32 scaled = vec_select_f32(small, x * vec_set_f32(0x1p25f), x);
    ivec_f32 e = (ivec_f32)((uvec_f32)scaled - 0x3f3504f3) >> 23; /* the bits of sqrt(1/2) */
    vec_f32 f = (vec_f32)((uvec_f32)scaled - ((uvec_f32)e << 23)) - one;
    vec_f32 exponent = __builtin_convertvector(e + (small & -25), vec_f32);
    vec_f32 s = f / (vec_set_f32(2.0f) + f), z = s * s;
    vec_f32 p = vec_set_f32(0x1.ddd4dap-3f);
    p = HORNER_F32(p, z, 0x1.245c28p-2f);
    p = HORNER_F32(p, z, 0x1.9999ecp-2f);
    p = HORNER_F32(p, z, 0x1.555556p-1f);
    vec_f32 square = half * f * f;
    vec_f32 tail = vec_fma_f32(s, vec_fma_f32(z, p, square), exponent * vec_set_f32(0x1.7f7d1cp-20f));
    vec_f32 y = vec_fma_f32(exponent, vec_set_f32(0x1.62e4p-1f), f - (square - tail)); /* the product is exact */
    y = vec_select_f32((ivec_f32)(x == infinity), x, y);
    y = vec_select_f32((ivec_f32)(x == zero), -infinity, y);
    return vec_select_f32((ivec_f32)(x >= zero), y, vec_set_f32(__builtin_nanf("")));
}

SIMD_INLINE vec_f64 log_f64(vec_f64 x)
{
    const vec_f64 zero = {0}, one = vec_set_f64(1.0), half = vec_set_f64(0.5), infinity = vec_set_f64(__builtin_inf());
    ivec_f64 small = (ivec_f64)(x < vec_set_f64(0x1p-1022));
    vec_f64 scaled = vec_select_f64(small, x * vec_set_f64(0x1p54), x);
    ivec_f64 e = (ivec_f64)((uvec_f64)scaled - 0x3fe6a09e667f3bcd) >> 52;
    vec_f64 f = (vec_f64)((uvec_f64)scaled - ((uvec_f64)e << 52)) - one;
    vec_f64 exponent = __builtin_convertvector(e + (small & -54), vec_f64);
    vec_f64 s = f / (vec_set_f64(2.0) + f), z = s * s;
    vec_f64 p = vec_set_f64(0x1.2b5f68a50d903p-3);
    p = HORNER_F64(p, z, 0x1.39fdcceb4bb45p-3);
    p = HORNER_F64(p, z, 0x1.7462b91b8df65p-3);
    p = HORNER_F64(p, z, 0x1.c71c62d5e53e0p-3);
    p = HORNER_F64(p, z, 0x1.2492492dfd86cp-2);
    p = HORNER_F64(p, z, 0x1.9999999995273p-2);
    p = HORNER_F64(p, z, 0x1.5555555555558p-1);
    vec_f64 square = half * f * f;
    vec_f64 tail = vec_fma_f64(s, vec_fma_f64(z, p, square), exponent * vec_set_f64(0x1.3de6af278ece6p-42));
    vec_f64 y = vec_fma_f64(exponent, vec_set_f64(0x1.62e42fefa3p-1), f - (square - tail));
    y = vec_select_f64((ivec_f64)(x == infinity), x, y);
    y = vec_select_f64((ivec_f64)(x == zero), -infinity, y);
    return vec_select_f64((ivec_f64)(x >= zero), y, vec_set_f64(__builtin_nan("")));
}

SIMD_INLINE void sincos_f64(vec_f64 x, vec_f64 *ret_sin, vec_f64 *ret_cos)
{
    const vec_f64 magic = vec_set_f64(0x1.8p52), one = vec_set_f64(1.0);
    const vec_f64 second = vec_set_f64(0x1.1a62633145c07p-54);
    vec_f64 shifted = vec_fma_f64(x, vec_set_f64(0x1.45f306dc9c883p-1), magic);
    vec_f64 n = shifted - magic;
    /* x - n (first + second + third) = r + e: the first step is exact, the second an exact sum of two numbers */
    vec_f64 head = vec_fma_f64(-n, vec_set_f64(0x1.921fb54442d18p+0), x);
    vec_f64 w = n * second;
    vec_f64 r = head - w, back = r - head;
    vec_f64 e = (head - (r - back)) - (w + back);
    e = e - vec_fma_f64(n, vec_set_f64(-0x1.f1976b7ed8fbcp-110), vec_fma_f64(n, second, -w));

    vec_f64 z = r * r, half_z = vec_set_f64(0.5) * z;
    vec_f64 p = vec_set_f64(0x1.5e0b05bff20f2p-33);
    p = HORNER_F64(p, z, -0x1.ae600aca92c64p-26);
    p = HORNER_F64(p, z, 0x1.71de379654304p-19);
    p = HORNER_F64(p, z, -0x1.a01a019e83816p-13);
    p = HORNER_F64(p, z, 0x1.1111111110bb2p-7);
    p = HORNER_F64(p, z, -0x1.5555555555555p-3);
    vec_f64 sine = r + vec_fma_f64(z * r, p, vec_fma_f64(-e, half_z, e));
    vec_f64 q = vec_set_f64(-0x1.907d8f29fe831p-37);
    q = HORNER_F64(q, z, 0x1.1eeb68cd22f56p-29);
    q = HORNER_F64(q, z, -0x1.27e4fa17bf139p-22);
    q = HORNER_F64(q, z, 0x1.a01a019f4e9b4p-16);
    q = HORNER_F64(q, z, -0x1.6c16c16c16967p-10);
    q = HORNER_F64(q, z, 0x1.5555555555555p-5);
    vec_f64 w1 = one - half_z;
    vec_f64 cosine = w1 + (((one - w1) - half_z) + vec_fma_f64(z * z, q, -(r * e)));

    /* quadrant n mod 4: sin, cos, -sin, -cos */
    ivec_f64 quadrant = (ivec_f64)shifted - (ivec_f64)magic;
    ivec_f64 odd = -(quadrant & 1);
    uvec_f64 sign_sin = ((uvec_f64)quadrant & 2) << 62, sign_cos = ((uvec_f64)(quadrant + 1) & 2) << 62;
    *ret_sin = (vec_f64)((uvec_f64)vec_select_f64(odd, cosine, sine) ^ sign_sin);
    *ret_cos = (vec_f64)((uvec_f64)vec_select_f64(odd, sine, cosine) ^ sign_cos);
}

#endif
