/* format: rounding of fp64 to narrower formats. One rule for all: scale so that the format's last place
 * is one unit, round to the nearest integer with ties to even, scale back. The scaling is by powers of two
 * and exact, so there is a single rounding, subnormal results included. */
#include "sim/format.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "sim/assertion.h"

const struct format_traits format_traits[FORMAT_COUNT] = {
    [FORMAT_FP64] = {"fp64", 8, 53, -1022, 1023, 0x1p-53, FORMAT_FP64, 0x1.fffffffffffffp1023, true},
    [FORMAT_FP32] = {"fp32", 4, 24, -126, 127, 0x1p-24, FORMAT_FP32, 0x1.fffffep127, true},
    [FORMAT_BF16] = {"bf16", 2, 8, -126, 127, 0x1p-8, FORMAT_FP32, 0x1.fep127, true},
    [FORMAT_FP16] = {"fp16", 2, 11, -14, 15, 0x1p-11, FORMAT_FP32, 65504, true},
    [FORMAT_FP8_E4M3] = {"fp8_e4m3", 1, 4, -6, 8, 0x1p-4, FORMAT_FP32, 448, false}, /* 480's pattern is NaN */
    [FORMAT_FP8_E5M2] = {"fp8_e5m2", 1, 3, -14, 15, 0x1p-3, FORMAT_FP32, 57344, true},
};

bool format_parse(const char *name, enum format *ret_format)
{
    for (int i = 0; i < FORMAT_COUNT; i++) {
        if (!strcmp(format_traits[i].name, name)) {
            *ret_format = (enum format)i;
            return true;
        }
    }
    return false;
}

double format_round(enum format format, double value)
{
    const struct format_traits *traits = &format_traits[format];
    double overflow = copysign(traits->infinite ? (double)INFINITY : (double)NAN, value);
    if (isinf(value)) return overflow;
    if (format == FORMAT_FP64 || value == 0 || isnan(value)) return value;
    if (format == FORMAT_FP32) return (double)(float)value;
    int exponent = ilogb(value);
    if (exponent < traits->exponent_min) exponent = traits->exponent_min; /* subnormal: fixed last place */
    int last_place = exponent - (traits->significand_bits - 1);
    double rounded = ldexp(rint(ldexp(value, -last_place)), last_place);
    return fabs(rounded) > traits->largest ? overflow : rounded;
}

/* Rounding on the bits of an fp32 number, the same values as format_round: + (half a step - 1 + last kept
 * bit), then clear the dropped bits; a carry runs into the exponent, which is right. bf16 has fp32's
 * exponents, so its subnormals and its overflow need nothing more. NaNs become quiet and stay NaNs. */
static inline uint32_t round_bf16(uint32_t bits)
{
    uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1), quiet = bits | 0x00400000;
    return ((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded) & 0xFFFF0000;
}

/* The other formats have fewer exponents. dropped: bits of the fraction; largest, normal: the largest finite
 * and the least normal value, overflow: what lies beyond, as patterns of fp32; shift: the number whose last
 * bit weighs as much as the subnormals' step. */
static inline __attribute__((always_inline)) uint32_t
round_narrow(uint32_t bits, int dropped, int32_t largest, int32_t overflow, int32_t normal, float shift)
{
    /* Signed: all are below 2^31, and x86 has no unsigned comparison of vectors. */
    int32_t magnitude = (int32_t)(bits & 0x7FFFFFFF), subnormal;
    int32_t kept = ~((1 << dropped) - 1), half = (1 << (dropped - 1)) - 1;
    int32_t rounded = (int32_t)((uint32_t)magnitude + (uint32_t)half + ((uint32_t)magnitude >> dropped & 1)) & kept;
    rounded = rounded > largest ? overflow : rounded;
    float small;
    memcpy(&small, &magnitude, sizeof small);
    small = (small + shift) - shift;
    memcpy(&subnormal, &small, sizeof subnormal);
    rounded = magnitude < normal ? subnormal : rounded;
    rounded = magnitude > 0x7F800000 ? (magnitude | 0x00400000) & kept : rounded;
    return (bits & 0x80000000) | (uint32_t)rounded;
}

/* Loops without branches, one a format, so that the compiler makes vector code of them; gcc asks for it. */
#if defined(__GNUC__) && !defined(__clang__)
#define VECTORIZED __attribute__((optimize("O3")))
#else
#define VECTORIZED
#endif
#define DEFINE_ROUND_ARRAY(name, rounded) \
    VECTORIZED static void name(void *data, size_t count) \
    { \
        unsigned char *at = data; \
        for (size_t i = 0; i < count; i++) { \
            uint32_t bits; \
            memcpy(&bits, at + 4 * i, sizeof bits); \
            bits = (rounded); \
            memcpy(at + 4 * i, &bits, sizeof bits); \
        } \
    }
DEFINE_ROUND_ARRAY(array_bf16, round_bf16(bits))
DEFINE_ROUND_ARRAY(array_fp16, round_narrow(bits, 13, 0x477FE000, 0x7F800000, 0x38800000, 0x1p-1f))
DEFINE_ROUND_ARRAY(array_fp8_e4m3, round_narrow(bits, 20, 0x43E00000, 0x7FC00000, 0x3C800000, 0x1p14f))
DEFINE_ROUND_ARRAY(array_fp8_e5m2, round_narrow(bits, 21, 0x47600000, 0x7F800000, 0x38800000, 0x1p7f))

void format_round_array(enum format format, void *data, size_t count)
{
    switch (format) {
    case FORMAT_BF16: array_bf16(data, count); break;
    case FORMAT_FP16: array_fp16(data, count); break;
    case FORMAT_FP8_E4M3: array_fp8_e4m3(data, count); break;
    case FORMAT_FP8_E5M2: array_fp8_e5m2(data, count); break;
    default: break; /* its own storage */
    }
}

double format_get(const void *data, size_t i, enum format storage)
{
    return storage == FORMAT_FP64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
}

void format_set(void *data, size_t i, enum format storage, double value)
{
    if (storage == FORMAT_FP64) ((double *)data)[i] = value;
    else ((float *)data)[i] = (float)value;
}
