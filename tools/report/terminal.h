/* terminal: where a report is printed: colours or none, how wide. */
#ifndef TOOLS_REPORT_TERMINAL_H
#define TOOLS_REPORT_TERMINAL_H

#include <stdbool.h>
#include <stdio.h>
#include "tools/options.h"

enum style { STYLE_PLAIN, STYLE_BOLD, STYLE_DIM, STYLE_GOOD, STYLE_BAD, STYLE_WARN, STYLE_NAME };

struct terminal { FILE *file; bool color; int width; };

/* auto: colours on a terminal, unless NO_COLOR is set or TERM is dumb. */
struct terminal terminal_new(FILE *file, enum color_choice color);
/* The escape sequences; "" without colours. */
const char *terminal_on(const struct terminal *t, enum style style);
const char *terminal_off(const struct terminal *t, enum style style);
void terminal_print(const struct terminal *t, enum style style, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* "label" in its own column, then the text, folded between words and indented to the text's column. */
void terminal_paragraph(const struct terminal *t, int indent, const char *label, int label_width,
                        enum style label_style, const char *text);

#endif
