/* diagnosis: is it the reference that is wrong? Blind as the rest: by what the standalone run itself noted.
 *
 * The comparison alone cannot tell which of two runs is the wrong one. Where nothing but the comparison fails, the
 * parallel run's own books are in order; then the same checks read the standalone run's. Where they find something, the
 * place is the standalone run's. Limit: a wrong layer leaves no trace in any book, so that its place is named as if it
 * were the parallel run's; and with a loss convention other than token_mean, whose weights depend on the layout, the
 * standalone run's books are not read. */
#include <stdio.h>
#include <string.h>

#include "scenarios/check_run.h"
#include "scenarios/diagnosis.h"
#include "scenarios/facts.h"

/* These two hold one run against the other, or say what follows from it. */
static bool compares(const char *check)
{
    return !strcmp(check, "oracle") || !strcmp(check, "grad-norm");
}

static bool only_compared(const struct result *result)
{
    bool any = false;
    for (int i = 0; i < result->checks_count; i++) {
        if (result->checks[i].status != CHECK_FAIL) continue;
        if (!compares(result->checks[i].id)) return false;
        any = true;
    }
    return any;
}

bool diagnose_reference(const struct evidence *evidence, const struct check_selection *selection, struct result *result)
{
    const struct record *record = evidence->standalone;
    if (evidence->config->workload != WORKLOAD_TRAIN) return false; /* their references are made apart from the program */
    if (!record || !facts_finished(record) || !only_compared(result) ||
        strcmp(loss_convention_of(&record->config)->name, "token_mean") != 0) return false;
    struct result own;
    memset(&own, 0, sizeof own);
    own.arena = arena_new("the reference's checks", false);
    struct evidence books = {&record->config, record, record, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL};
    checks_run(&books, selection, &own);
    bool failed = false, found = false;
    for (int i = 0; i < own.checks_count; i++) failed = failed || own.checks[i].status == CHECK_FAIL;
    if (failed) found = diagnose(&books, &own);
    if (found) {
        result->diagnosis = own.diagnosis;
        snprintf(result->diagnosis.summary, sizeof result->diagnosis.summary, "In the standalone run, not in the parallel one: %.900s",
                 own.diagnosis.summary);
    }
    arena_free(own.arena);
    return found;
}
