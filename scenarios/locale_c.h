/* locale_c: numbers are read and written with a decimal point, whatever locale the process has set. For this thread,
 * from enter to leave. */
#ifndef SCENARIOS_LOCALE_C_H
#define SCENARIOS_LOCALE_C_H

#include <locale.h>

struct locale_c { locale_t c, before; };

static inline struct locale_c locale_c_enter(void)
{
    struct locale_c locale = {newlocale(LC_ALL_MASK, "C", (locale_t)0), (locale_t)0};
    if (locale.c) locale.before = uselocale(locale.c);
    return locale;
}

static inline void locale_c_leave(struct locale_c locale)
{
    if (!locale.c) return;
    uselocale(locale.before);
    freelocale(locale.c);
}

#endif
