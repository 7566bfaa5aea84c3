/* table: cells in aligned columns, printed when all are known. */
#ifndef TOOLS_REPORT_TABLE_H
#define TOOLS_REPORT_TABLE_H

#include "tools/report/terminal.h"

struct table;

/* titles: one a column, NULL for a table without a head. align: 'l' or 'r' a column. Caller owns. */
struct table *table_new(int columns, const char *const *titles, const char *align);
void table_free(struct table *table);                        /* accepts NULL */
/* Cells fill row by row. */
void table_add(struct table *table, enum style style, const char *format, ...) __attribute__((format(printf, 3, 4)));
void table_gap(struct table *table, const char *text);       /* a row that is one text across all columns */
void table_print(const struct table *table, const struct terminal *terminal, int indent);

#endif
