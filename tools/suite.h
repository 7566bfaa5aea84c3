/* suite: many scenarios, each in a child process of its own, so that one that crashes takes nothing with
 * it. Rows come out in the order of the paths, whoever finishes first. */
#ifndef TOOLS_SUITE_H
#define TOOLS_SUITE_H

#include "scenarios/result.h"

enum suite_end {
    SUITE_RAN,
    SUITE_REFUSED,             /* the file could not be read as a scenario, or the machine could not run it */
    SUITE_CRASHED,             /* hpsim's own fault */
    SUITE_NOT_RUN,             /* interrupted before */
};

/* Crosses a pipe as it is: no pointers. */
struct suite_row {
    enum suite_end end;
    char scenario[128];        /* its name; the file's where it could not be read */
    enum verdict verdict;      /* SUITE_RAN only, as the next three */
    bool as_expected;
    char component[64];
    char failed_checks[320];   /* with commas */
    char expected[256];
    char why[1024];            /* not as expected, refused, crashed: why */
    double wall_s;
};

struct suite { int count; char **paths; struct suite_row *rows; };

/* Files as they are, folders searched for *.json, both in the order given, a folder's in ascending order of names.
 * False and an error: a path is not there, or nothing is found at all. */
bool suite_collect(struct suite *suite, const char *const *paths, int count, struct error *error);
void suite_done(struct suite *suite);

/* Called for each row in order, as soon as all before it are done. */
typedef void suite_report(void *context, const struct suite *suite, int row);
/* False: interrupted; rows that did not finish are SUITE_NOT_RUN. */
bool suite_run(struct suite *suite, const struct scenario_options *wanted, const struct experiment_options *experiment,
               int jobs, suite_report *report, void *context);

bool suite_row_passed(const struct suite_row *row);

/* report/junit.c: malloc'd. */
char *suite_junit(const struct suite *suite);

#endif
