/* junit: the rows of `hpsim test` as JUnit XML. No times: two runs give the same bytes. */
#include <stdio.h>
#include <stdlib.h>
#include "sim/arena.h"
#include "tools/suite.h"

/* What XML 1.0 cannot hold becomes "?". */
static void write_escaped(FILE *file, const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        switch (*p) {
        case '&': fputs("&amp;", file); break;
        case '<': fputs("&lt;", file); break;
        case '>': fputs("&gt;", file); break;
        case '"': fputs("&quot;", file); break;
        case '\n': fputs("&#10;", file); break;
        default: fputc(*p < 0x20 && *p != '\t' ? '?' : *p, file);
        }
    }
}

static void write_outcome(FILE *file, const struct suite_row *row)
{
    static const char *const elements[] = {
        [SUITE_RAN] = "failure", [SUITE_REFUSED] = "error", [SUITE_CRASHED] = "error", [SUITE_NOT_RUN] = "skipped"};
    fprintf(file, "      <%s message=\"", elements[row->end]);
    if (row->end == SUITE_RAN) {
        write_escaped(file, verdict_names[row->verdict]);
        if (row->component[0]) fputs(" in ", file);
        write_escaped(file, row->component);
        fputs(", expected ", file);
        write_escaped(file, row->expected);
        if (row->why[0]) fputs(": ", file);
    }
    write_escaped(file, row->why);
    fputs("\"/>\n", file);
}

char *suite_junit(const struct suite *suite)
{
    char *text = NULL;
    size_t size = 0;
    int failures = 0, errors = 0, skipped = 0;
    for (int i = 0; i < suite->count; i++) {
        const struct suite_row *row = &suite->rows[i];
        failures += row->end == SUITE_RAN && !suite_row_passed(row);
        errors += row->end == SUITE_REFUSED || row->end == SUITE_CRASHED;
        skipped += row->end == SUITE_NOT_RUN;
    }
    FILE *file = open_memstream(&text, &size);
    if (!file) memory_failed(1);
    fprintf(file,
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n"
            "  <testsuite name=\"hpsim\" tests=\"%d\" failures=\"%d\" errors=\"%d\" skipped=\"%d\">\n",
            suite->count, failures, errors, skipped);
    for (int i = 0; i < suite->count; i++) {
        const struct suite_row *row = &suite->rows[i];
        fputs("    <testcase classname=\"hpsim\" name=\"", file);
        write_escaped(file, row->scenario);
        fputs("\" file=\"", file);
        write_escaped(file, suite->paths[i]);
        if (suite_row_passed(row)) {
            fputs("\"/>\n", file);
            continue;
        }
        fputs("\">\n", file);
        write_outcome(file, row);
        fputs("    </testcase>\n", file);
    }
    fputs("  </testsuite>\n</testsuites>\n", file);
    if (fclose(file) != 0) memory_failed(size);
    return text;
}
