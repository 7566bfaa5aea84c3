/* assertion: see assertion.h. */
#include "sim/assertion.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static char replay[2048];
static volatile sig_atomic_t has_failed;

bool assertion_has_failed(void)
{
    return has_failed;
}

void assertion_set_replay(const char *text)
{
    snprintf(replay, sizeof replay, "%s", text);
}

void assertion_failed(const char *file, int line, const char *function, const char *condition, const char *format, ...)
{
    has_failed = 1;
    fprintf(stderr, "hpsim: a mistake in hpsim itself: %s:%d: %s: %s does not hold\n", file, line, function, condition);
    if (format) {
        va_list arguments;
        va_start(arguments, format);
        fputs("  ", stderr);
        vfprintf(stderr, format, arguments);
        fputc('\n', stderr);
        va_end(arguments);
    }
    if (replay[0]) fprintf(stderr, "  to see it again: %s\n", replay);
    abort();
}
