/* terminal: styles are the sixteen basic colours, so that they follow the user's own palette. */
#include "tools/report/terminal.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { WIDTH_DEFAULT = 110, WIDTH_MIN = 40, WIDTH_MAX = 120 };

static const char *const style_codes[] = {
    [STYLE_PLAIN] = "", [STYLE_BOLD] = "\033[1m", [STYLE_DIM] = "\033[2m", [STYLE_GOOD] = "\033[1;32m",
    [STYLE_BAD] = "\033[1;31m", [STYLE_WARN] = "\033[33m", [STYLE_NAME] = "\033[36m",
};

struct terminal terminal_new(FILE *file, enum color_choice color)
{
    struct terminal t = {.file = file, .width = WIDTH_DEFAULT};
    int descriptor = fileno(file);
    bool tty = descriptor >= 0 && isatty(descriptor);
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    t.color = color == COLOR_ALWAYS;
    if (color == COLOR_AUTO) t.color = tty && !(no_color && *no_color) && term && strcmp(term, "dumb") != 0;
    struct winsize size;
    if (tty && ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        t.width = size.ws_col < WIDTH_MIN ? WIDTH_MIN : size.ws_col > WIDTH_MAX ? WIDTH_MAX : size.ws_col;
    }
    return t;
}

const char *terminal_on(const struct terminal *t, enum style style)
{
    return t->color ? style_codes[style] : "";
}

const char *terminal_off(const struct terminal *t, enum style style)
{
    return t->color && style != STYLE_PLAIN ? "\033[0m" : "";
}

void terminal_print(const struct terminal *t, enum style style, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fputs(terminal_on(t, style), t->file);
    vfprintf(t->file, format, list);
    fputs(terminal_off(t, style), t->file);
    va_end(list);
}

void terminal_paragraph(const struct terminal *t, int indent, const char *label, int label_width,
                        enum style label_style, const char *text)
{
    int begin = indent + label_width, column = begin;
    fprintf(t->file, "%*s", indent, "");
    terminal_print(t, label_style, "%-*s", label_width, label);
    if ((int)strlen(label) > label_width) column += (int)strlen(label) - label_width;
    bool first = true;
    while (*text) {
        text += strspn(text, " \n");
        int length = (int)strcspn(text, " \n");
        if (length == 0) break;
        if (!first && column + 1 + length > t->width) {
            fprintf(t->file, "\n%*s", begin, "");
            column = begin;
        } else if (!first) {
            fputc(' ', t->file);
            column++;
        }
        fwrite(text, 1, (size_t)length, t->file);
        column += length;
        text += length;
        first = false;
    }
    fputc('\n', t->file);
}
