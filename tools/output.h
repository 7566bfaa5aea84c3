/* output: files that are there whole or not at all. */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include <stdbool.h>
#include "sim/error.h"

/* Before a long run: could this be written? "-" is standard output. NULL is nothing to do. */
bool output_check(const char *path, const char *option, struct error *error);
/* Writes path.tmp and renames it; what is no regular file (a device, a pipe) is written as it is. */
bool output_write(const char *path, const char *text, struct error *error);

/* A writer that renames over its goal, as the tensor dump's does, would put a file in the place of a device. */
bool output_is_replaceable(const char *path);

#endif
