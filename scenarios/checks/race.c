/* race: no buffer of an asynchronous call is used between its start and the end of its wait.
 *
 * Read off what the ranks' communicators noted (collectives/hazards.c): an output that was read before its call was
 * waited for; an input that was not what it was at the start when the call took it, or when it ended. Both places
 * are named: the call, and who read. Whether the bytes happened to be right does not matter. Limit: exact; a write
 * that leaves an input's bytes as they were is not seen, nor who wrote it. Site: that of the call.
 * Whole runs note reads; inputs are compared where a run is watched: with deep checks, or faults in the scenario.
 * An input that the call's own output was written over is collective-match's: an undeclared alias. */
#include <stdio.h>

#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/facts.h"

static void say_place(char text[96], struct where where)
{
    size_t used = 0;
    text[0] = '\0';
    if (where.layer >= 0) used += (size_t)snprintf(text + used, 96 - used, " of layer %d", where.layer);
    if (where.microbatch >= 0) snprintf(text + used, 96 - used, " for micro-batch %d", where.microbatch);
}

static void find_hazard(struct check_output *output, int rank, const struct hazard *hazard)
{
    struct finding finding = finding_new(hazard->site, place_at(rank, hazard->where.step, hazard->where.microbatch));
    finding.place.layer = hazard->where.layer;
    if (finding.place.layer >= 0) finding.place.unit = finding.place.layer + 1;
    char at[96], reader[96];
    say_place(at, hazard->where);
    say_place(reader, hazard->by_where);
    if (hazard->kind == HAZARD_READ) {
        finding_pattern(&finding, "read-early");
        finding_say(&finding, "rank %d in step %d: %s%s reads what %s%s is to bring, which was started and not waited for", rank,
                    hazard->by_where.step, hazard->by->name, reader, hazard->site->name, at);
    } else {
        finding_pattern(&finding, "overwritten");
        finding_say(&finding, "rank %d in step %d: the buffer that %s%s sends from was written between its start and the end of its wait",
                    rank, hazard->where.step, hazard->site->name, at);
    }
    check_value(output, 1, 0);
    check_find(output, &finding);
}

static void run(const struct evidence *e, struct check_output *output)
{
    check_value(output, 0, 0);
    for (int r = 0; r < e->parallel->ranks; r++) {
        const struct communicator *c = e->parallel->rank[r].communicator;
        for (int i = 0; c && i < communicator_hazards(c); i++) {
            const struct hazard *hazard = communicator_hazard(c, i);
            if (hazard->kind != HAZARD_ALIASED) find_hazard(output, r, hazard);
        }
    }
}

const struct check check_race = {
    .id = "race",
    .proves = "no buffer of an asynchronous call is written, and none of its results read, between its start and the "
              "end of its wait",
    .tier = "default",
    .run = run,
    .workloads = CHECK_IN(WORKLOAD_TRAIN) | CHECK_IN(WORKLOAD_ATTENTION) | CHECK_IN(WORKLOAD_DENOISE),
};
