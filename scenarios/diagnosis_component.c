/* diagnosis: the component. The rule stands in diagnosis.h. */
#include <math.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/call_due.h"
#include "scenarios/diagnosis.h"
#include "scenarios/facts.h"
#include "scenarios/reduction_sums.h"

static bool any_of_check(const struct diagnosis_group *group, const char *check)
{
    for (int i = 0; i < group->count; i++) {
        if (!strcmp(group->findings[i]->check, check)) return true;
    }
    return false;
}

static bool any_with_pattern(const struct diagnosis_group *group, const char *pattern)
{
    for (int i = 0; i < group->count; i++) {
        if (!strcmp(group->findings[i]->pattern, pattern)) return true;
    }
    return false;
}

/* ---- is it the call that is due? ---- */

/* Every rank's calls at the site in that step are as due; who has something wrong there made one, of its layer where
 * units are gathered one by one. */
static bool calls_are_due(const struct evidence *e, const struct diagnosis_group *group)
{
    const struct record *record = e->parallel;
    struct call_due due;
    if (!call_due(&record->config, group->site, &due)) return false;
    bool sums = group->site == &site_tp_row_reduce || group->site == &site_tp_input_grad_reduce || group->site == &site_sp_gather ||
                group->site == &site_sp_gather_again || group->site == &site_sp_output_grad_gather || group->site == &site_sp_grad_reduce;
    bool by_layer = sums || (group->site == &site_fsdp_unshard && record->config.layout.zero == ZERO_3);
    for (int r = 0; r < record->ranks; r++) {
        const struct communicator *log = record->rank[r].communicator;
        for (int i = 0; log && i < communicator_calls(log); i++) {
            const struct call_record *call = communicator_call(log, i);
            if (call->step == group->step && !strcmp(call->purpose, group->site->name) && !call_is_due(call, &due)) return false;
        }
    }
    for (int f = 0; f < group->count; f++) {
        const struct place *place = &group->findings[f]->place;
        const struct communicator *log = place->rank >= 0 ? record->rank[place->rank].communicator : NULL;
        bool made = !log;
        for (int i = 0; log && i < communicator_calls(log) && !made; i++) {
            const struct call_record *call = communicator_call(log, i);
            made = call->step == group->step && !strcmp(call->purpose, group->site->name) &&
                   (!by_layer || place->layer < 0 || call->layer == place->layer);
        }
        if (!made) return false;
    }
    return true;
}

/* ---- is it the result that is wrong, and not what was asked for? ---- */

/* What went into the printed loss' average, and what came out. */
static bool average_is_wrong(const struct record *record, int step)
{
    for (int r = 0; r < record->ranks; r++) {
        const struct report_fact *fact = facts_report(&record->rank[r], step);
        double sum = 0, magnitudes = 0;
        int members = 0, D = layout_data_ranks(&record->config.layout);
        for (int d = 0; fact && d < D; d++) {
            const struct rank_record *member = facts_rank(record, record->rank[r].stage, d);
            const struct report_fact *part = member ? facts_report(member, step) : NULL;
            if (!part) continue;
            sum += part->contributed;
            magnitudes += fabs(part->contributed);
            members++;
        }
        if (fact && members == D && !(fabs(fact->averaged - sum / D) <= 4 * D * ldexp(1, -53) * magnitudes)) return true;
    }
    return false;
}

static bool result_is_wrong(const struct evidence *e, const struct diagnosis_group *group)
{
    static const char *const words[] = {"altered",    "copies-differ", "missing-ranks", "doubled-ranks", "not-gathered",
                                        "not-finite", "rounded",       "other-sum"};
    static const char *const of_another_step[] = {"stale", "stale-version", "mixed-versions", "earlier-step", "never-posted"};
    for (size_t i = 0; i < sizeof of_another_step / sizeof of_another_step[0]; i++) {
        if (any_with_pattern(group, of_another_step[i])) return false;
    }
    if (group->site == &site_loss_report_reduce)
        return average_is_wrong(e->parallel, group->step) || any_with_pattern(group, "rounded");
    if (group->site == facts_reduction_site(&e->parallel->config, 0) || group->site == &site_ep_reduce_grad)
        return reduction_sums_any_wrong(e->parallel, group->site, group->step);
    if (group->site == &site_hsdp_replicate_reduce || group->site == &site_tied_grad_reduce) return false; /* a sum of sums: always the caller's */
    if (any_of_check(group, "scale-ledger")) return true;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (any_with_pattern(group, words[i])) return true;
    }
    return false;
}

/* ---- once, in one place? ---- */

/* The layer that the call of this unit's gradient names; a bucket has that of the unit that completed it. */
static int call_layer(const struct record *record, const struct place *place)
{
    const struct rank_record *rank = &record->rank[place->rank];
    for (int i = 0; i < rank->gradients.count; i++) {
        const struct gradient_fact *fact = &rank->gradients.items[i];
        if (fact->stage == GRADIENT_LOCAL && fact->step == place->step && fact->unit == place->unit) return fact->call_layer;
    }
    return place->layer;
}

static int calls_in_step(const struct record *record, int rank, const struct site *site, int step)
{
    const struct communicator *log = record->rank[rank].communicator;
    int count = 0;
    for (int i = 0; log && i < communicator_calls(log); i++)
        count += communicator_call(log, i)->step == step && !strcmp(communicator_call(log, i)->purpose, site->name);
    return count;
}

/* Sites are found wrong in their first step: that it is not the first of the run says that they were right before. */
static bool is_one_call(const struct evidence *e, const struct diagnosis_group *group)
{
    const struct place *first = NULL;
    if (group->step < 1) return false;
    for (int i = 0; i < group->count; i++) {
        const struct place *place = &group->findings[i]->place;
        if (place->rank < 0 || place->unit < 0) return false;
        first = first ? first : place;
        bool same = place->microbatch == first->microbatch && call_layer(e->parallel, place) == call_layer(e->parallel, first) &&
                    e->parallel->rank[place->rank].stage == e->parallel->rank[first->rank].stage;
        if (!same) return false;
    }
    return first && calls_in_step(e->parallel, first->rank, group->site, group->step) > 1;
}

static bool is_one_microbatch(const struct evidence *e, const struct diagnosis_group *group)
{
    if (group->step < 1 || e->parallel->config.layout.microbatches < 2) return false;
    const struct place *first = &group->findings[0]->place;
    for (int i = 0; i < group->count; i++) {
        const struct place *place = &group->findings[i]->place;
        if (place->rank < 0 || place->microbatch < 0 || place->rank != first->rank || place->unit != first->unit ||
            place->microbatch != first->microbatch) return false;
    }
    return true;
}

const char *diagnosis_component(const struct evidence *evidence, const struct diagnosis_group *group)
{
    const struct site *site = group->site;
    if (group->step < 0) return site->component;
    if (any_of_check(group, "race")) return (site->facets & FACET_REDUCES) && !any_with_pattern(group, "overwritten") ? site->component : "async";
    if (any_with_pattern(group, "aliased")) return "collectives";
    if ((site == &site_layer_forward || site == &site_layer_backward) && is_one_microbatch(evidence, group)) return "hardware";
    if (site->kind != SITE_COMMUNICATION || any_of_check(group, "collective-match")) return site->component;
    if (any_with_pattern(group, "wrong-format")) return "precision";
    if (!calls_are_due(evidence, group) || !result_is_wrong(evidence, group)) return site->component;
    return is_one_call(evidence, group) ? "hardware" : "collectives";
}
