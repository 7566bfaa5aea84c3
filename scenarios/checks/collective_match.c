/* collective-match: all members of a group make the same calls in the same order, with the same operation, count,
 * format, reduction and root; both sides of a message agree on its size and format.
 *
 * Read off the ranks' logs of calls (collectives/match.h). Limit: exact. A finding's site: that of the deviating
 * call, its rank: who deviates. */
#include <stdlib.h>

#include "collectives/match.h"
#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/facts.h"

enum { MISMATCHES_MAX = 256 };

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    struct communicator **communicators = memory_zalloc((size_t)record->ranks * sizeof *communicators);
    struct mismatch *list = memory_zalloc(MISMATCHES_MAX * sizeof *list);
    for (int r = 0; r < record->ranks; r++) communicators[r] = record->rank[r].communicator;
    int count = match_calls(communicators, record->ranks, facts_finished(record), list, MISMATCHES_MAX);
    check_value(output, count, 0);
    for (int i = 0; i < count && i < MISMATCHES_MAX; i++) {
        const struct site *site = list[i].purpose ? model_site_find(list[i].purpose) : NULL;
        struct finding finding = finding_new(site, place_at(list[i].rank, list[i].step, list[i].microbatch));
        finding.place.layer = list[i].layer;
        finding_pattern(&finding, "calls-differ");
        finding_say(&finding, "group %s, call %llu: %s", list[i].group, (unsigned long long)list[i].sequence, list[i].text);
        check_find(output, &finding);
    }
    free(list);
    free(communicators);
}

const struct check check_collective_match = {
    .id = "collective-match",
    .proves = "all members of each group make the same calls in the same order with the same operation, count, format, reduction and root",
    .tier = "default",
    .run = run,
};
