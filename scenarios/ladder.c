/* ladder: the three limits. See the header for where they come from. */
#include "scenarios/ladder.h"

#include <math.h>

double ladder_screen(enum format working, double terms_count)
{
    return 4 * format_traits[working].unit_roundoff * sqrt(terms_count);
}

double ladder_limit(double error_fp32, double terms_count)
{
    return fmax(ldexp(error_fp32, -15), ldexp(1024 * sqrt(terms_count), -53));
}

bool ladder_is_bug(double error_fp32, double error_fp64, double terms_count)
{
    if (!isfinite(error_fp32) || !isfinite(error_fp64)) return true;
    return error_fp64 > ladder_limit(error_fp32, terms_count);
}

struct precision ladder_other(const struct precision *working)
{
    return precision_of(precision_is(working, FORMAT_FP64) ? FORMAT_FP32 : FORMAT_FP64);
}
