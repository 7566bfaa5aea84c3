/* collective-match: all members of a group make the same calls in the same order, with the same operation, count,
 * format, reduction and root; both sides of a message agree on its size and format.
 *
 * Read off the ranks' logs of calls (collectives/match.h). Beside it, what all members may agree on and be wrong: the root
 * of the printed loss' broadcast is the last stage, the group of what moves parameters and gradients is the layout's
 * (call_due.c); and a call's input that afterwards holds the beginning of its output,
 * where it was not said that both are one memory (collectives/hazards.c). Where ranks look whether what they give to a
 * gradient reduction is finite (train.check_finite), each says so of its own (dp.finite_check). Limit: exact. A finding's rank: who deviates; its site: that
 * of the deviating call, or, where what this rank calls is what the other calls next, of the call that it left out. */
#include <stdlib.h>
#include <string.h>

#include "collectives/match.h"
#include "model/sites.h"
#include "scenarios/call_due.h"
#include "scenarios/check.h"
#include "scenarios/facts.h"

enum { MISMATCHES_MAX = 256 };

static const struct call_record *call_at(const struct rank_record *rank, const char *group, uint64_t sequence)
{
    for (int i = 0; rank->communicator && i < communicator_calls(rank->communicator); i++) {
        const struct call_record *call = communicator_call(rank->communicator, i);
        if (call->sequence == sequence && !strcmp(call->group, group)) return call;
    }
    return NULL;
}

static bool alike(const struct call_record *a, const struct call_record *b)
{
    return a && b && !strcmp(a->op, b->op) && !strcmp(a->purpose, b->purpose) && a->count == b->count &&
           a->layer == b->layer && a->microbatch == b->microbatch && a->step == b->step;
}

/* The call that the deviating rank left out; NULL where it made one too many, or another one. */
static const struct call_record *left_out(const struct record *record, const struct mismatch *m)
{
    const struct rank_record *rank = &record->rank[m->rank], *other = &record->rank[m->other];
    const struct call_record *mine = call_at(rank, m->group, m->sequence),
                             *theirs = call_at(other, m->group, m->sequence);
    const struct call_record *next = call_at(other, m->group, m->sequence + 1);
    if (!theirs || alike(mine, theirs)) return NULL;
    if (!mine || alike(mine, next)) return theirs;
    /* Stuck there: by the order of a step's end (tied gradient, norm, printed loss), who is ahead has left out. */
    const struct site *a = model_site_find(mine->purpose), *b = model_site_find(theirs->purpose);
    bool ahead = a == &site_loss_report_reduce && b && model_site_order(b) >= model_site_order(&site_tied_grad_reduce);
    return !next && ahead ? theirs : NULL;
}

static void find_mismatch(const struct evidence *e, struct check_output *output, const struct mismatch *m)
{
    const struct call_record *missing = left_out(e->parallel, m);
    const struct site *site = missing      ? model_site_find(missing->purpose)
                              : m->purpose ? model_site_find(m->purpose)
                                           : NULL;
    struct finding finding = finding_new(site, place_at(m->rank, m->step, m->microbatch));
    finding.place.layer = m->layer;
    if (missing) {
        finding.place.step = missing->step;
        finding.place.microbatch = missing->microbatch;
        finding.place.layer = missing->layer;
    }
    if (finding.place.layer >= 0) finding.place.unit = finding.place.layer + 1;
    finding_pattern(&finding, "calls-differ");
    finding_say(&finding, "%s%s", m->text, missing ? ", which it leaves out" : "");
    check_find(output, &finding);
}

/* The last stage has the loss, whatever all of them think. */
static void check_roots(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    int due = e->parallel->config.layout.pp - 1;
    for (int i = 0; rank->communicator && i < communicator_calls(rank->communicator); i++) {
        const struct call_record *call = communicator_call(rank->communicator, i);
        if (strcmp(call->purpose, site_loss_report_broadcast.name) || call->root == due) continue;
        struct finding finding = finding_new(&site_loss_report_broadcast, place_at(rank->rank, call->step, -1));
        finding.expected = due;
        finding.got = call->root;
        finding_pattern(&finding, "wrong-root");
        finding_say(&finding, "rank %d takes the printed loss of step %d from member %d of group %s; member %d, the last stage, has it",
                    rank->rank, call->step, call->root, call->group, due);
        check_value(output, 1, 0);
        check_find(output, &finding);
    }
}

/* What moves parameters, gradients, and keys and values of other positions goes over the shards or the data ranks: a group of the same size would do as well. */
static void check_groups(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    const struct site *const sites[] = {&site_fsdp_unshard, &site_fsdp_reduce_grad, &site_dp_all_reduce_grad, &site_ep_reduce_grad, &site_hsdp_replicate_reduce, &site_sp_grad_reduce,
                                        &site_cp_kv_gather, &site_cp_kv_grad_scatter, &site_cp_seq_to_head, &site_cp_head_to_seq};
    for (int i = 0; rank->communicator && i < communicator_calls(rank->communicator); i++) {
        const struct call_record *call = communicator_call(rank->communicator, i);
        struct call_due due = {.group = call->group};
        for (size_t k = 0; k < sizeof sites / sizeof sites[0]; k++) {
            if (!strcmp(call->purpose, sites[k]->name)) call_due(&e->parallel->config, sites[k], &due);
        }
        if (call_group_is_due(call, &due)) continue;
        struct finding finding = finding_new(due.site, place_at(rank->rank, call->step, call->microbatch));
        finding.place.layer = call->layer;
        if (call->layer >= 0) finding.place.unit = call->layer + 1;
        finding_pattern(&finding, "wrong-group");
        finding_say(&finding, "rank %d calls %s for %s in step %d in group %s; %s is due", rank->rank, call->op, call->purpose,
                    call->step, call->group, due.group);
        check_value(output, 1, 0);
        check_find(output, &finding);
    }
}

static void check_aliases(struct check_output *output, const struct rank_record *rank)
{
    for (int i = 0; rank->communicator && i < communicator_hazards(rank->communicator); i++) {
        const struct hazard *hazard = communicator_hazard(rank->communicator, i);
        if (hazard->kind != HAZARD_ALIASED) continue;
        struct finding finding = finding_new(hazard->site, place_at(rank->rank, hazard->where.step, hazard->where.microbatch));
        finding.place.layer = hazard->where.layer;
        if (finding.place.layer >= 0) finding.place.unit = finding.place.layer + 1;
        finding_pattern(&finding, "aliased");
        finding_say(&finding, "rank %d in step %d: the input of %s holds the beginning of its output afterwards, which nobody declared",
                    rank->rank, hazard->where.step, hazard->site->name);
        check_value(output, 1, 0);
        check_find(output, &finding);
    }
}

/* Who brought it into the reduction; -1: nobody. */
static int culprit(const struct record *record, const struct finite_fact *like)
{
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].finites.count; i++) {
            const struct finite_fact *fact = &record->rank[r].finites.items[i];
            if (fact->step == like->step && fact->microbatch == like->microbatch && fact->unit == like->unit && !fact->was) return r;
        }
    }
    return -1;
}

static void check_accusations(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    for (int i = 0; i < rank->finites.count; i++) {
        const struct finite_fact *fact = &rank->finites.items[i];
        if (fact->said == fact->was) continue;
        struct finding finding = finding_new(&site_dp_finite_check, place_at_unit(&e->parallel->config, rank->rank, fact->step, fact->microbatch, fact->unit));
        char name[32];
        unit_name(&e->parallel->config.model, fact->unit, name);
        finding_pattern(&finding, "culprit-lost");
        finding.expected = fact->was;
        finding.got = fact->said;
        if (fact->was) finding_say(&finding, "in step %d rank %d says that its gradient of %s is not finite, and it is: rank %d's is not", fact->step, rank->rank, name, culprit(e->parallel, fact));
        else finding_say(&finding, "in step %d rank %d says that its gradient of %s is finite, and it is not", fact->step, rank->rank, name);
        check_value(output, 1, 0);
        check_find(output, &finding);
    }
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    struct communicator **communicators = memory_zalloc((size_t)record->ranks * sizeof *communicators);
    struct mismatch *list = memory_zalloc(MISMATCHES_MAX * sizeof *list);
    for (int r = 0; r < record->ranks; r++) communicators[r] = record->rank[r].communicator;
    int count = match_calls(communicators, record->ranks, facts_finished(record), list, MISMATCHES_MAX);
    check_value(output, count, 0);
    for (int i = 0; i < count && i < MISMATCHES_MAX; i++) find_mismatch(e, output, &list[i]);
    for (int r = 0; r < record->ranks; r++) {
        check_roots(e, output, &record->rank[r]);
        check_groups(e, output, &record->rank[r]);
        check_aliases(output, &record->rank[r]);
        check_accusations(e, output, &record->rank[r]);
    }
    free(list);
    free(communicators);
}

const struct check check_collective_match = {
    .id = "collective-match",
    .proves = "all members of each group make the same calls in the same order with the same operation, count, format, "
              "reduction and root",
    .tier = "default",
    .run = run,
    .workloads = CHECK_IN(WORKLOAD_TRAIN) | CHECK_IN(WORKLOAD_ATTENTION) | CHECK_IN(WORKLOAD_DENOISE),
};
