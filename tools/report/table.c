/* table: columns are as wide as their widest cell, two blanks apart; widths count characters of UTF-8. */
#include "tools/report/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "sim/arena.h"
#include "sim/assertion.h"

struct cell { char *text; enum style style; bool gap; };
struct table { int columns, count, capacity; const char *const *titles; const char *align; struct cell *cells; };

static int text_width(const char *text)
{
    int width = 0;
    for (; *text; text++) width += ((unsigned char)*text & 0xC0) != 0x80;
    return width;
}

struct table *table_new(int columns, const char *const *titles, const char *align)
{
    ASSERT((int)strlen(align) == columns);
    struct table *table = memory_zalloc(sizeof *table);
    *table = (struct table){.columns = columns, .titles = titles, .align = align};
    return table;
}

void table_free(struct table *table)
{
    if (!table) return;
    for (int i = 0; i < table->count; i++) free(table->cells[i].text);
    free(table->cells);
    free(table);
}

static void add_cell(struct table *table, char *text, enum style style, bool gap)
{
    if (table->count == table->capacity) {
        table->capacity = table->capacity ? 2 * table->capacity : 64;
        table->cells = memory_realloc(table->cells, (size_t)table->capacity * sizeof *table->cells);
    }
    table->cells[table->count++] = (struct cell){text, style, gap};
}

void table_add(struct table *table, enum style style, const char *format, ...)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (!file) memory_failed(1);
    va_list list;
    va_start(list, format);
    vfprintf(file, format, list);
    va_end(list);
    if (fclose(file) != 0) memory_failed(size);
    add_cell(table, text, style, false);
}

void table_gap(struct table *table, const char *text)
{
    ASSERT(table->count % table->columns == 0);
    add_cell(table, memory_strdup(text), STYLE_DIM, true);
    for (int i = 1; i < table->columns; i++) add_cell(table, NULL, STYLE_DIM, true);
}

static void print_cell(const struct table *table, const struct terminal *terminal, int column, int width,
                       const char *text, enum style style)
{
    int blanks = width - text_width(text);
    bool right = table->align[column] == 'r', last = column == table->columns - 1;
    if (right) fprintf(terminal->file, "%*s", blanks, "");
    terminal_print(terminal, style, "%s", text);
    if (!right && !last) fprintf(terminal->file, "%*s", blanks, "");
    if (!last) fputs("  ", terminal->file);
}

void table_print(const struct table *table, const struct terminal *terminal, int indent)
{
    ASSERT(table->count % table->columns == 0);
    int *width = memory_zalloc((size_t)table->columns * sizeof *width);
    for (int c = 0; table->titles && c < table->columns; c++) width[c] = text_width(table->titles[c]);
    for (int i = 0; i < table->count; i++) {
        int c = i % table->columns, own = table->cells[i].gap ? 0 : text_width(table->cells[i].text);
        if (own > width[c]) width[c] = own;
    }
    for (int row = table->titles ? -1 : 0; row < table->count / table->columns; row++) {
        const struct cell *cells = row < 0 ? NULL : &table->cells[row * table->columns];
        fprintf(terminal->file, "%*s", indent, "");
        if (cells && cells[0].gap) terminal_print(terminal, STYLE_DIM, "%s", cells[0].text);
        for (int c = 0; c < table->columns && !(cells && cells[0].gap); c++) {
            if (cells) print_cell(table, terminal, c, width[c], cells[c].text, cells[c].style);
            else print_cell(table, terminal, c, width[c], table->titles[c], STYLE_DIM);
        }
        fputc('\n', terminal->file);
    }
    free(width);
}
