/* assertion: a mistake in hpsim itself. Always on, in every build.
 *
 * Prints where, what, and the replay line (set once by the program: how to run this again), then
 * aborts. Never used for input or for what a scenario does wrong. */
#ifndef SIM_ASSERTION_H
#define SIM_ASSERTION_H

#include <stdbool.h>

#define ASSERT(condition) \
    ((condition) ? (void)0 : assertion_failed(__FILE__, __LINE__, __func__, #condition, 0))
#define ASSERT_MESSAGE(condition, ...) \
    ((condition) ? (void)0 : assertion_failed(__FILE__, __LINE__, __func__, #condition, __VA_ARGS__))

void assertion_failed(const char *file, int line, const char *function, const char *condition,
                      const char *format, ...) __attribute__((noreturn));

/* Has one failed in this process? For handlers of SIGABRT. */
bool assertion_has_failed(void);

/* The text is copied. */
void assertion_set_replay(const char *text);

#endif
