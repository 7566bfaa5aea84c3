/* number: formatting. printf writes the locale's decimal point; it is put back to a point here. */
#include "tools/report/number.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void use_point(char *text)
{
    const char *point = localeconv()->decimal_point;
    if (!strcmp(point, ".")) return;
    char *found = strstr(text, point);
    if (!found) return;
    *found = '.';
    memmove(found + 1, found + strlen(point), strlen(found + strlen(point)) + 1);
}

static const char *not_finite(double value, char text[NUMBER_TEXT])
{
    strcpy(text, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
    return text;
}

const char *number_shortest(double value, char text[NUMBER_TEXT])
{
    if (!isfinite(value)) return not_finite(value, text);
    /* %.15g drops trailing zeros, so it is the shortest for all that 15 digits can hold; only subnormals need fewer. */
    int digits = fabs(value) < DBL_MIN ? 1 : 15;
    do snprintf(text, NUMBER_TEXT, "%.*g", digits, value);
    while (digits++ < 17 && strtod(text, NULL) != value);
    use_point(text);
    return text;
}

const char *number_value(double value, char text[NUMBER_TEXT])
{
    if (!isfinite(value)) return not_finite(value, text);
    double size = fabs(value);
    if (size != 0 && (size < 1e-3 || size >= 1e6)) snprintf(text, NUMBER_TEXT, "%.6e", value);
    else snprintf(text, NUMBER_TEXT, "%.7f", value);
    use_point(text);
    return text;
}

const char *number_error(double value, char text[NUMBER_TEXT])
{
    if (!isfinite(value)) return not_finite(value, text);
    if (value == 0) snprintf(text, NUMBER_TEXT, "0");
    else if (fabs(value) >= 0.01 && fabs(value) < 1000) snprintf(text, NUMBER_TEXT, "%.3g", value);
    else snprintf(text, NUMBER_TEXT, "%.1e", value);
    use_point(text);
    return text;
}

const char *number_factor(double value, char text[NUMBER_TEXT])
{
    if (!isfinite(value)) return not_finite(value, text);
    snprintf(text, NUMBER_TEXT, "%.6g", value);
    use_point(text);
    return text;
}

const char *number_count(int64_t value, char text[NUMBER_TEXT])
{
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)value), used = 0;
    for (int i = 0; i < length; i++) {
        text[used++] = digits[i];
        int left = length - 1 - i;
        if (left > 0 && left % 3 == 0 && digits[i] != '-') text[used++] = ',';
    }
    text[used] = 0;
    return text;
}

const char *number_bytes(double bytes, char text[NUMBER_TEXT])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB"};
    int unit = 0;
    while (bytes >= 999.5 && unit < 5) {
        bytes /= 1000;
        unit++;
    }
    snprintf(text, NUMBER_TEXT, unit && bytes < 99.95 ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
    use_point(text);
    return text;
}

const char *number_seconds(double seconds, char text[NUMBER_TEXT])
{
    if (!isfinite(seconds)) return not_finite(seconds, text);
    if (seconds == 0) snprintf(text, NUMBER_TEXT, "0 s");
    else if (seconds < 1e-3) snprintf(text, NUMBER_TEXT, "%.1f us", seconds * 1e6);
    else if (seconds < 1) snprintf(text, NUMBER_TEXT, "%.1f ms", seconds * 1e3);
    else snprintf(text, NUMBER_TEXT, "%.2f s", seconds);
    use_point(text);
    return text;
}
