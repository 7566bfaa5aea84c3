/* format: rounding of fp64 to narrower formats. One rule for all: scale so that the format's last place
 * is one unit, round to the nearest integer with ties to even, scale back. The scaling is by powers of two
 * and exact, so there is a single rounding, subnormal results included. */
#include "sim/format.h"

#include <math.h>
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

void format_round_array(enum format format, void *data, size_t count)
{
    if (format_traits[format].storage == format) return;
    float *values = data;
    for (size_t i = 0; i < count; i++) values[i] = (float)format_round(format, (double)values[i]);
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
