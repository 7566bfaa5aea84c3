/* error: what went wrong with the user's input or environment, with its place and a way out.
 *
 * Owned by the caller, passed last, set at most once: the first error wins. A function that takes
 * one returns false (or NULL) exactly when it set it. Mistakes in hpsim itself are assertions
 * (sim/assertion.h); what a scenario does wrong is a finding (model/record.h), never an error. */
#ifndef SIM_ERROR_H
#define SIM_ERROR_H

#include <stdbool.h>
#include <stdarg.h>

enum error_kind { ERROR_NONE = 0, ERROR_INPUT = 2, ERROR_INTERNAL = 70 }; /* the exit status */

struct error {
    enum error_kind kind;
    int line, column;   /* 1-based; 0 where there is none */
    char file[512];     /* "" where there is none */
    char path[256];     /* JSON key path such as parallel.pipeline.microbatches; "" where none */
    char message[768];  /* one phrase, no capital, no full stop: what was found, what is allowed */
    char hint[512];     /* the way out; "" where there is none */
};

/* Both keep what was there first. Always return false, so that "return error_input(...)" works. */
bool error_input(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool error_internal(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Add the place or the way out to an error that was just set; keep what is already there. */
void error_at(struct error *error, const char *file, int line, int column, const char *path);
void error_hint(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

bool error_is_set(const struct error *error);

/* "file:line:column: path: message\n  hint: ..." into text (always terminated). */
void error_text(const struct error *error, char *text, unsigned long size);

#endif
