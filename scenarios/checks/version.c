/* version: the weights used in step t are the master weights of step t, everywhere.
 *
 * Every shard of a parameter carries the step whose update it has seen; a gathered unit shows the least and the
 * greatest of its shards, and how many there are. What was gathered is, to the bit, what the shards hold after the
 * step before (by digest). Limit: exact: both = the step, all of the group's shards, once and unscaled, equal
 * digests. Sites: fsdp.unshard; optimizer.copy where nothing is gathered; dp.param_buffer where the copy was right as the
 * step began. */
#include "scenarios/check.h"
#include "scenarios/facts.h"
#include "scenarios/unit_values.h"
#include "model/sites.h"

#include <stdlib.h>

/* Due digests, found once for each (step, unit, use, replicate of shards). */
struct due_digests {
    struct unit_values values;
    int steps, units;
    uint64_t *digest;
    char *state; /* 0: not looked at, 1: known, 2: none */
};

static bool due_digest(struct due_digests *due, const struct rank_record *rank, int step, int unit,
                       uint64_t *ret_digest)
{
    bool copy = unit == 0 && rank->stage > 0;
    size_t slot = copy ? (size_t)due->units : (size_t)unit;
    const struct layout *layout = &due->values.record->config.layout;
    int span = layout_ep_shards(layout);
    size_t copy_of = (size_t)((rank->replicate * layout->tp + rank->tp) * span + rank->shard % span); /* who has other experts has other numbers */
    size_t i = (copy_of * (size_t)due->steps + (size_t)step) * (size_t)(due->units + 1) + slot;
    if (due->state[i] == 0)
        due->state[i] = unit_values_digest(&due->values, rank->rank, step - 1, unit, &due->digest[i]) ? 1 : 2;
    *ret_digest = due->digest[i];
    return due->state[i] == 1;
}

/* Where parameters stay gathered, the copy that computes is noted as a step begins: wrong then already, it was made wrong;
 * wrong only when it is used, something else wrote to it. */
static const struct site *altered_at(const struct evidence *e, int rank, const struct version_fact *fact, uint64_t due)
{
    const struct rank_record *r = &e->parallel->rank[rank];
    int zero = e->parallel->config.layout.zero;
    for (int i = 0; zero != ZERO_3 && i < r->versions.count; i++) {
        const struct version_fact *first = &r->versions.items[i];
        if (first->step != fact->step || first->unit != fact->unit || first->microbatch >= 0) continue;
        if (first->digest == due) return &site_dp_param_buffer;
        return zero == ZERO_0 ? &site_optimizer_copy : &site_fsdp_unshard;
    }
    return &site_fsdp_unshard;
}

static void check_values(const struct evidence *e, struct check_output *output, struct due_digests *due, int rank,
                         const struct version_fact *fact)
{
    uint64_t digest;
    if (fact->digest == 0 || !due_digest(due, &e->parallel->rank[rank], fact->step, fact->unit, &digest)) return;
    check_value(output, fact->digest != digest, 0);
    if (fact->digest == digest) return;
    char name[32];
    unit_name(&e->parallel->config.model, fact->unit, name);
    const struct site *site = altered_at(e, rank, fact, digest);
    struct finding finding = finding_new(site, place_at_unit(&e->parallel->config, rank, fact->step, fact->microbatch, fact->unit));
    finding_pattern(&finding, site == &site_fsdp_unshard ? "altered" : site == &site_optimizer_copy ? "not-copied" : "overwritten");
    if (fact->microbatch < 0) {
        finding_say(&finding, "rank %d begins step %d with other numbers in its copy of %s than the shards hold", rank, fact->step, name);
        check_find(output, &finding);
        return;
    }
    finding_say(&finding,
                "rank %d computes %s in step %d (%s of micro-batch %d) with other numbers than its shards hold", rank,
                name, fact->step, fact->backward ? "backward" : "forward", fact->microbatch);
    check_find(output, &finding);
}

static bool is_as_due(const struct version_fact *fact)
{
    return fact->version_min == fact->step && fact->version_max == fact->step && fact->shards == fact->shards_due;
}

static void check_one(const struct evidence *e, struct check_output *output, int rank, const struct version_fact *fact)
{
    int shards = fact->shards_due;
    bool versions = fact->version_min == fact->step && fact->version_max == fact->step,
         good = versions && fact->shards == shards;
    bool nothing = fact->version_min > fact->version_max;
    check_value(output,
                good                  ? 0
                : nothing || versions ? 1
                                      : abs(fact->version_min - fact->step) + abs(fact->version_max - fact->step),
                0);
    if (good) return;
    char name[32];
    unit_name(&e->parallel->config.model, fact->unit, name);
    struct finding finding = finding_new(&site_fsdp_unshard,
        place_at_unit(&e->parallel->config, rank, fact->step, fact->microbatch, fact->unit));
    finding.expected = fact->step;
    finding.got = nothing ? -1 : fact->version_min;
    const char *pattern = nothing || versions                      ? "not-gathered"
                          : fact->version_min == fact->version_max ? "stale-version"
                                                                   : "mixed-versions";
    finding_pattern(&finding, pattern);
    if (nothing) {
        finding_say(&finding, "rank %d computes %s in step %d with parameters that no all-gather brought", rank, name,
                    fact->step);
    } else if (versions) {
        finding.expected = shards;
        finding.got = fact->shards;
        finding_say(&finding,
                    "rank %d computes %s in step %d (%s of micro-batch %d) with %d whole shards of its parameters "
                    "where there are %d",
                    rank, name, fact->step, fact->backward ? "backward" : "forward", fact->microbatch, fact->shards,
                    shards);
    } else if (fact->version_min == fact->version_max) {
        finding_say(&finding, "rank %d computes %s in step %d (%s of micro-batch %d) with the parameters of step %d",
                    rank, name, fact->step, fact->backward ? "backward" : "forward", fact->microbatch,
                    fact->version_min);
    } else {
        finding_say(
            &finding,
            "rank %d computes %s in step %d (%s of micro-batch %d) with parameters of steps %d to %d: the shard of "
            "member %d is old",
            rank, name, fact->step, fact->backward ? "backward" : "forward", fact->microbatch, fact->version_min,
            fact->version_max, fact->shard_min);
    }
    check_find(output, &finding);
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    struct due_digests due = {unit_values_new(record), record->config.train.steps, gradient_unit_count(&record->config),
                              NULL, NULL};
    size_t cells = (size_t)(record->config.layout.dp_replicate * record->config.layout.tp * layout_ep_shards(&record->config.layout)) * (size_t)due.steps * (size_t)(due.units + 1);
    due.digest = memory_zalloc(cells * sizeof *due.digest);
    due.state = memory_zalloc(cells);
    for (int step = 0; step < record->config.train.steps; step++) {
        for (int r = 0; r < record->ranks; r++) {
            for (int i = 0; i < record->rank[r].versions.count; i++) {
                const struct version_fact *fact = &record->rank[r].versions.items[i];
                if (fact->step != step) continue;
                check_one(e, output, r, fact);
                if (is_as_due(fact)) check_values(e, output, &due, r, fact);
            }
        }
    }
    free(due.digest);
    free(due.state);
    unit_values_free(&due.values);
}

const struct check check_version = {
    .id = "version",
    .proves = "the weights used in step t are the master weights of step t on every rank, whole and to the bit, in "
              "forward and backward",
    .tier = "default",
    .run = run,
};
