/* number: numbers as text, with a point whatever the locale says. */
#ifndef TOOLS_REPORT_NUMBER_H
#define TOOLS_REPORT_NUMBER_H

#include <stddef.h>
#include <stdint.h>

enum { NUMBER_TEXT = 40 };

/* For machines: the fewest digits that read back as the same bits; "nan", "inf", "-inf". */
const char *number_shortest(double value, char text[NUMBER_TEXT]);
/* For people: a loss or a norm (8 significant digits), a small error ("0", "3.1e-08"), a factor (6 digits). */
const char *number_value(double value, char text[NUMBER_TEXT]);
const char *number_error(double value, char text[NUMBER_TEXT]);
const char *number_factor(double value, char text[NUMBER_TEXT]);
const char *number_count(int64_t value, char text[NUMBER_TEXT]);  /* "434,688" */
const char *number_bytes(double bytes, char text[NUMBER_TEXT]);   /* "1.7 MB", powers of 1000 */
const char *number_seconds(double seconds, char text[NUMBER_TEXT]); /* "12.3 ms" */

#endif
