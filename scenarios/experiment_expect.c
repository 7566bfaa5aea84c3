/* experiment: is the result what the scenario expects? Without an expectation: consistent. */
#include <stdio.h>
#include <string.h>

#include "scenarios/check_run.h"
#include "scenarios/experiment.h"

static bool check_failed(const struct result *result, const char *id)
{
    for (int i = 0; i < result->checks_count; i++) {
        if (!strcmp(result->checks[i].id, id)) return result->checks[i].status == CHECK_FAIL;
    }
    return false;
}

static bool ranks_equal(const struct expectation *expect, const struct diagnosis *diagnosis)
{
    if (expect->ranks_count != diagnosis->ranks_count) return false;
    for (int i = 0; i < expect->ranks_count; i++) {
        bool found = false;
        for (int k = 0; k < diagnosis->ranks_count; k++) found = found || diagnosis->ranks[k] == expect->ranks[i];
        if (!found) return false;
    }
    return true;
}

static void list_ranks(const int *ranks, int count, char *text, size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < count && used + 12 < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%d", i ? ", " : "", ranks[i]);
    if (count == 0) snprintf(text, size, "none");
}

static bool diagnosis_expected(struct result *result)
{
    const struct expectation *expect = &result->scenario->expect;
    const struct diagnosis *diagnosis = &result->diagnosis;
    char *why = result->expected_why;
    size_t size = sizeof result->expected_why;
    const char *component = result->has_diagnosis ? diagnosis->component : "none";
    const char *site = result->has_diagnosis && diagnosis->site ? diagnosis->site : "none";
    if (expect->component[0] && strcmp(expect->component, component)) {
        snprintf(why, size, "component %s is expected, the diagnosis is %s", expect->component, component);
        return false;
    }
    if (expect->site[0] && strcmp(expect->site, site)) {
        snprintf(why, size, "site %s is expected, the diagnosis is %s", expect->site, site);
        return false;
    }
    if (expect->ranks_count > 0 && !ranks_equal(expect, diagnosis)) {
        char due[96], got[96];
        list_ranks(expect->ranks, expect->ranks_count, due, sizeof due);
        list_ranks(diagnosis->ranks, diagnosis->ranks_count, got, sizeof got);
        snprintf(why, size, "ranks %s are expected, the diagnosis is %s", due, got);
        return false;
    }
    return true;
}

void experiment_expect(struct result *result)
{
    const struct expectation *expect = &result->scenario->expect;
    enum verdict due = expect->given ? expect->verdict : VERDICT_CONSISTENT;
    result->as_expected = false;
    for (int i = 0; i < result->faults_count; i++) {
        if (result->faults[i].outcome != FAULT_NOT_HIT) continue;
        snprintf(result->expected_why, sizeof result->expected_why, "fault %s was never hit", result->faults[i].fault);
        return;
    }
    if (result->verdict != due) {
        snprintf(result->expected_why, sizeof result->expected_why, "%s is expected, the verdict is %s",
                 verdict_names[due], verdict_names[result->verdict]);
        return;
    }
    if (expect->given && !diagnosis_expected(result)) return;
    for (int i = 0; expect->given && i < expect->checks_count; i++) {
        if (check_failed(result, expect->checks[i])) continue;
        snprintf(result->expected_why, sizeof result->expected_why, "check %s is expected to fail and does not",
                 expect->checks[i]);
        return;
    }
    result->as_expected = true;
}
