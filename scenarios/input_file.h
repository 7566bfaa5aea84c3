/* input_file: a whole file into memory, refusing what is no plain file or too large before reading it. */
#ifndef SCENARIOS_INPUT_FILE_H
#define SCENARIOS_INPUT_FILE_H

#include <stddef.h>
#include "sim/error.h"

/* malloc'd, with a NUL behind its last byte. NULL and an error that says `subject` ("" or "text 'x.txt' ")
 * before the reason; the caller adds the place. */
char *input_file_read(const char *path, size_t bytes_max, const char *subject, size_t *ret_bytes, struct error *error);
/* Could it be read? Same errors. */
bool input_file_check(const char *path, const char *subject, struct error *error);

#endif
