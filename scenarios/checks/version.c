/* version: the weights used in step t are the master weights of step t, everywhere.
 *
 * Every shard of a parameter carries the step whose update it has seen; a gathered unit shows the least and the
 * greatest of its shards, and how many there are. Limit: exact, both = the step, all of the group's, once and
 * unscaled. A finding's site: fsdp.unshard. */
#include "scenarios/check.h"
#include "scenarios/facts.h"
#include "model/sites.h"

#include <stdlib.h>

static void check_one(const struct evidence *e, struct check_output *output, int rank, const struct version_fact *fact)
{
    const struct layout *layout = &e->parallel->config.layout;
    int shards = layout->zero == ZERO_3 ? layout->dp_shard : 1;
    bool versions = fact->version_min == fact->step && fact->version_max == fact->step, good = versions && fact->shards == shards;
    bool nothing = fact->version_min > fact->version_max;
    check_value(output, good ? 0 : nothing || versions ? 1 : abs(fact->version_min - fact->step) + abs(fact->version_max - fact->step), 0);
    if (good) return;
    char name[32];
    unit_name(&e->parallel->config.model, fact->unit, name);
    struct finding finding = finding_new(&site_fsdp_unshard,
        place_at_unit(&e->parallel->config, rank, fact->step, fact->microbatch, fact->unit));
    finding.expected = fact->step;
    finding.got = nothing ? -1 : fact->version_min;
    const char *pattern = nothing || versions ? "not-gathered" : fact->version_min == fact->version_max ? "stale-version" : "mixed-versions";
    finding_pattern(&finding, pattern);
    if (nothing) {
        finding_say(&finding, "rank %d computes %s in step %d with parameters that no all-gather brought", rank, name, fact->step);
    } else if (versions) {
        finding.expected = shards;
        finding.got = fact->shards;
        finding_say(&finding, "rank %d computes %s in step %d (%s of micro-batch %d) with %d whole shards of its parameters where there are %d",
                    rank, name, fact->step, fact->backward ? "backward" : "forward", fact->microbatch, fact->shards, shards);
    } else if (fact->version_min == fact->version_max) {
        finding_say(&finding, "rank %d computes %s in step %d (%s of micro-batch %d) with the parameters of step %d", rank, name,
                    fact->step, fact->backward ? "backward" : "forward", fact->microbatch, fact->version_min);
    } else {
        finding_say(&finding, "rank %d computes %s in step %d (%s of micro-batch %d) with parameters of steps %d to %d: the shard "
                    "of member %d is old", rank, name, fact->step, fact->backward ? "backward" : "forward", fact->microbatch,
                    fact->version_min, fact->version_max, fact->shard_min);
    }
    check_find(output, &finding);
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    for (int step = 0; step < record->config.train.steps; step++) {
        for (int r = 0; r < record->ranks; r++) {
            for (int i = 0; i < record->rank[r].versions.count; i++) {
                const struct version_fact *fact = &record->rank[r].versions.items[i];
                if (fact->step == step) check_one(e, output, r, fact);
            }
        }
    }
}

const struct check check_version = {
    .id = "version",
    .proves = "the weights used in step t come from the master weights of step t on every rank, in forward and backward",
    .tier = "default",
    .run = run,
};
