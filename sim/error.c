/* error: see error.h. */
#include "sim/error.h"

#include <stdio.h>

static void set(struct error *error, enum error_kind kind, const char *format, va_list arguments)
{
    if (!error || error->kind != ERROR_NONE) return;
    error->kind = kind;
    vsnprintf(error->message, sizeof error->message, format, arguments);
}

bool error_input(struct error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set(error, ERROR_INPUT, format, arguments);
    va_end(arguments);
    return false;
}

bool error_internal(struct error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set(error, ERROR_INTERNAL, format, arguments);
    va_end(arguments);
    return false;
}

void error_at(struct error *error, const char *file, int line, int column, const char *path)
{
    if (!error_is_set(error)) return; /* a place without an error would stick to the next one */
    if (file && !error->file[0]) snprintf(error->file, sizeof error->file, "%s", file);
    if (!error->line) {
        error->line = line;
        error->column = column;
    }
    if (path && !error->path[0]) snprintf(error->path, sizeof error->path, "%s", path);
}

void error_hint(struct error *error, const char *format, ...)
{
    if (!error_is_set(error) || error->hint[0]) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error->hint, sizeof error->hint, format, arguments);
    va_end(arguments);
}

bool error_is_set(const struct error *error)
{
    return error && error->kind != ERROR_NONE;
}

static int add(char *text, unsigned long size, int used, const char *format, ...) __attribute__((format(printf, 4, 5)));
static int add(char *text, unsigned long size, int used, const char *format, ...)
{
    if (used < 0 || (unsigned long)used >= size) return used;
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(text + used, size - (unsigned long)used, format, arguments);
    va_end(arguments);
    return more < 0 ? used : used + more;
}

void error_text(const struct error *error, char *text, unsigned long size)
{
    int used = 0;
    if (size == 0) return;
    text[0] = 0;
    if (error->file[0]) used = add(text, size, used, "%s:", error->file);
    if (error->line > 0) used = add(text, size, used, "%d:", error->line);
    if (error->line > 0 && error->column > 0) used = add(text, size, used, "%d:", error->column);
    if (used > 0) used = add(text, size, used, " ");
    if (error->path[0]) used = add(text, size, used, "%s: ", error->path);
    used = add(text, size, used, "%s", error->message);
    if (error->hint[0]) add(text, size, used, "\n  hint: %s", error->hint);
}
