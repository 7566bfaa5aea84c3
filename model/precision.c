/* precision: see the header. */
#include "model/precision.h"

#include <math.h>
#include <string.h>

#include "sim/assertion.h"

static bool narrows(enum format storage, enum format format)
{
    return format_traits[format].significand_bits < format_traits[storage].significand_bits;
}

void vector_round(void *data, size_t count, enum format storage, enum format format)
{
    if (count == 0 || !narrows(storage, format)) return;
    if (format_traits[format].storage == storage) {
        format_round_array(format, data, count);
        return;
    }
    for (size_t i = 0; i < count; i++) format_set(data, i, storage, format_round(format, format_get(data, i, storage)));
}

void tensor_round(struct tensor values, enum format format)
{
    ASSERT(tensor_is_dense(values));
    vector_round(values.data, (size_t)tensor_count(values), values.storage, format);
}

/* Of a double: from its leading bit to its last one that is set. */
static int significant_bits(uint64_t bits)
{
    const uint64_t leading = (uint64_t)1 << 52;
    uint64_t mantissa = bits & (leading - 1);
    if (bits << 1 >= (uint64_t)1 << 53) mantissa |= leading; /* not subnormal */
    return mantissa ? 64 - __builtin_clzll(mantissa) - __builtin_ctzll(mantissa) : 0;
}

int vector_bits(const void *data, size_t count, enum format storage, int64_t *ret_values)
{
    int most = 0;
    *ret_values = 0;
    for (size_t i = 0; i < count; i++) {
        double value = storage == FORMAT_FP32 ? ((const float *)data)[i] : format_get(data, i, storage);
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        int own = significant_bits(bits);
        if (own == 0 || !isfinite(value)) continue;
        ++*ret_values;
        if (own > most) most = own;
    }
    return most;
}

/* Exponent that scales `largest` into [2^e_max, 2^(e_max+1)), cut by what the format can hold. */
static int scale_exponent(double largest, enum format format)
{
    int exponent;
    if (largest == 0 || !isfinite(largest)) return 0;
    frexp(largest, &exponent);
    int up = format_traits[format].exponent_max + 1 - exponent;
    /* A format whose top binade is not whole (E4M3 ends at 448) must not be reached beyond its end. */
    return isfinite(format_round(format, ldexp(largest, up))) ? up : up - 1;
}

void matrix_round_scaled(struct tensor out, struct tensor in, enum format format, bool by_column)
{
    ASSERT(in.dims == 2 && out.dims == 2 && in.shape[0] == out.shape[0] && in.shape[1] == out.shape[1]);
    int64_t lines = in.shape[by_column ? 1 : 0], length = in.shape[by_column ? 0 : 1];
    int64_t line_in = in.stride[by_column ? 1 : 0], step_in = in.stride[by_column ? 0 : 1];
    int64_t line_out = out.stride[by_column ? 1 : 0], step_out = out.stride[by_column ? 0 : 1];
    for (int64_t l = 0; l < lines; l++) {
        double largest = 0;
        for (int64_t i = 0; i < length; i++) {
            double value = fabs(format_get(in.data, (size_t)(l * line_in + i * step_in), in.storage));
            if (!(value <= largest)) largest = value;
        }
        int up = scale_exponent(largest, format);
        for (int64_t i = 0; i < length; i++) {
            double value = format_get(in.data, (size_t)(l * line_in + i * step_in), in.storage);
            format_set(out.data, (size_t)(l * line_out + i * step_out), out.storage, ldexp(format_round(format, ldexp(value, up)), -up));
        }
    }
}

double precision_smallest(const struct precision *precision)
{
    double largest = 0;
    for (int i = 0; i < PRECISION_PARTS; i++) {
        const struct format_traits *traits = &format_traits[precision_part(precision, i)];
        if (format_is_fp8(precision_part(precision, i))) continue; /* scaled by row */
        largest = fmax(largest, ldexp(1, traits->exponent_min - traits->significand_bits + 1));
    }
    return largest;
}
