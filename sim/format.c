/* format: rounding of fp64 to narrower formats. One rule for all: scale so that the format's last place
 * is one unit, round to the nearest integer with ties to even, scale back. The scaling is by powers of two
 * and exact, so there is a single rounding, subnormal results included. */
#include "sim/format.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "sim/assertion.h"

const struct format_traits format_traits[FORMAT_COUNT] = {
    [FORMAT_FP64] = {"fp64", 8, 53, -1022, 1023, 0x1p-53, FORMAT_FP64},
    [FORMAT_FP32] = {"fp32", 4, 24, -126, 127, 0x1p-24, FORMAT_FP32},
    [FORMAT_BF16] = {"bf16", 2, 8, -126, 127, 0x1p-8, FORMAT_FP32},
    [FORMAT_FP16] = {"fp16", 2, 11, -14, 15, 0x1p-11, FORMAT_FP32},
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
    if (format == FORMAT_FP64 || value == 0 || !isfinite(value)) return value;
    if (format == FORMAT_FP32) return (double)(float)value;
    int exponent = ilogb(value);
    if (exponent < traits->exponent_min) exponent = traits->exponent_min; /* subnormal: fixed last place */
    int last_place = exponent - (traits->significand_bits - 1);
    double rounded = ldexp(rint(ldexp(value, -last_place)), last_place);
    double largest = ldexp(2 - ldexp(1, 1 - traits->significand_bits), traits->exponent_max);
    return fabs(rounded) > largest ? copysign(INFINITY, value) : rounded;
}

/* Rounding on the bits of an fp32 number, the same values as format_round: + (half a step - 1 + last kept
 * bit), then clear the dropped bits; a carry runs into the exponent, which is right. bf16 has fp32's
 * exponents, so its subnormals and its overflow need nothing more. NaNs become quiet and stay NaNs. */
static inline uint32_t round_bf16(uint32_t bits)
{
    uint32_t rounded = bits + 0x7FFF + (bits >> 16 & 1), quiet = bits | 0x00400000;
    return ((bits & 0x7FFFFFFF) > 0x7F800000 ? quiet : rounded) & 0xFFFF0000;
}

static inline uint32_t round_fp16(uint32_t bits)
{
    uint32_t sign = bits & 0x80000000, magnitude = bits & 0x7FFFFFFF, subnormal;
    uint32_t normal = (magnitude + 0xFFF + (magnitude >> 13 & 1)) & 0xFFFFE000;
    normal = normal >= 0x47800000 ? 0x7F800000 : normal; /* 2^16 and above */
    float small;
    memcpy(&small, &magnitude, sizeof small);
    small = (small + 0x1p-1f) - 0x1p-1f; /* the last bit of 1/2 weighs 2^-24, the subnormals' step */
    memcpy(&subnormal, &small, sizeof subnormal);
    uint32_t rounded = magnitude < 0x38800000 ? subnormal : normal; /* 2^-14 */
    rounded = magnitude > 0x7F800000 ? (magnitude | 0x00400000) & 0xFFFFE000 : rounded;
    return sign | rounded;
}

void format_round_array(enum format format, void *data, size_t count)
{
    if (format_traits[format].storage == format) return;
    unsigned char *at = data;
    for (size_t i = 0; i < count; i++, at += 4) {
        uint32_t bits;
        memcpy(&bits, at, sizeof bits);
        bits = format == FORMAT_BF16 ? round_bf16(bits) : round_fp16(bits);
        memcpy(at, &bits, sizeof bits);
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
