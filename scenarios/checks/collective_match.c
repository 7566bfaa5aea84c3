/* collective-match: all members of a group make the same calls in the same order, with the same operation, count,
 * format, reduction and root; both sides of a message agree on its size and format.
 *
 * Read off the ranks' logs of calls (collectives/match.h). Limit: exact. A finding's rank: who deviates; its site: that
 * of the deviating call, or, where what this rank calls is what the other calls next, of the call that it left out. */
#include <stdlib.h>
#include <string.h>

#include "collectives/match.h"
#include "model/sites.h"
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

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    struct communicator **communicators = memory_zalloc((size_t)record->ranks * sizeof *communicators);
    struct mismatch *list = memory_zalloc(MISMATCHES_MAX * sizeof *list);
    for (int r = 0; r < record->ranks; r++) communicators[r] = record->rank[r].communicator;
    int count = match_calls(communicators, record->ranks, facts_finished(record), list, MISMATCHES_MAX);
    check_value(output, count, 0);
    for (int i = 0; i < count && i < MISMATCHES_MAX; i++) find_mismatch(e, output, &list[i]);
    free(list);
    free(communicators);
}

const struct check check_collective_match = {
    .id = "collective-match",
    .proves = "all members of each group make the same calls in the same order with the same operation, count, format, "
              "reduction and root",
    .tier = "default",
    .run = run,
};
