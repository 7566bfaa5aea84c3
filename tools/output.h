/* output: files that are there whole or not at all. */
#ifndef TOOLS_OUTPUT_H
#define TOOLS_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>
#include "sim/error.h"

/* Before a long run: could this be written? "-" is standard output. NULL is nothing to do. */
bool output_check(const char *path, const char *option, struct error *error);
/* Writes path.tmp and renames it; what is no regular file (a device, a pipe) is written as it is. */
bool output_write(const char *path, const char *text, struct error *error);

/* Standard output, for all that a command with a scenario prints. */
FILE *output_stream(void);
/* From here on only output_stream() leads there: what writes to descriptor 1 or to stdout ends in standard error. Of a process in
 * which foreign code runs, before it has threads. */
void output_divert(void);

/* A writer that renames over its goal, as the tensor dump's does, would put a file in the place of a device. */
bool output_is_replaceable(const char *path);

#endif
