/* guard_report: the result of a run that its plug-in ended. There is no record: what is known is who did it and how. */
#include "tools/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/experiment.h"
#include "sim/arena.h"

static void fill_checks(struct result *result, const struct guard_result *ended)
{
    result->checks_count = check_count();
    result->checks = arena_zalloc(result->arena, (size_t)result->checks_count * sizeof *result->checks);
    for (int i = 0; i < result->checks_count; i++) {
        struct check_result *c = &result->checks[i];
        bool own = !strcmp(check_at(i)->id, "plugin");
        *c = (struct check_result){.id = check_at(i)->id, .status = own ? CHECK_FAIL : CHECK_SKIP, .value = own ? 1 : 0, .limit = 0,
                                   .place = {own ? ended->rank : -1, -1, -1, -1, -1, NULL}, .findings = own};
        snprintf(c->why, sizeof c->why, "%.600s", own ? ended->message : "the run did not end");
    }
}

static void fill_diagnosis(struct result *result, const struct guard_result *ended)
{
    struct diagnosis *d = &result->diagnosis;
    result->has_diagnosis = true;
    *d = (struct diagnosis){.component = "plugin", .place = {ended->rank, -1, -1, -1, -1, NULL}, .ranks_count = ended->rank >= 0};
    d->ranks[0] = ended->rank;
    snprintf(d->summary, sizeof d->summary, "%s", ended->message);
    snprintf(d->next, sizeof d->next, "look at the plug-in: %s; the same call comes again in the same place, also under a debugger (HPSIM_PLUGIN_SECONDS=0, and follow the child)",
             ended->operation[0] ? ended->operation : "what it writes to");
}

struct result *guard_result_new(const struct guard_page *page, const struct guard_result *ended)
{
    const struct scenario *scenario = guard_scenario(page);
    if (!scenario) return NULL;
    struct arena *arena = arena_new("result", false);
    struct result *result = arena_zalloc(arena, sizeof *result);
    result->arena = arena;
    result->scenario = scenario;
    result->exploded_step = -1;
    result->verdict = VERDICT_VIOLATED;
    result->parallel = arena_zalloc(arena, sizeof *result->parallel);
    result->parallel->config = scenario->config;
    result->parallel->outcome = MACHINE_STOPPED;
    fill_checks(result, ended);
    fill_diagnosis(result, ended);
    for (int i = 0; i < scenario->faults_count; i++) {
        const struct fault_entry *entry = &scenario->faults[i];
        struct fault_result *fault = &result->faults[result->faults_count++];
        *fault = (struct fault_result){.fault = entry->name, .site = entry->site ? entry->site->name : NULL, .outcome = FAULT_ACTIVE};
        snprintf(fault->why, sizeof fault->why, "not known: the run did not end");
    }
    experiment_expect(result);
    return result;
}

void guard_result_free(struct result *result)
{
    if (result) arena_free(result->arena);
}
