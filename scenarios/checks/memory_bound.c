/* memory-bound: what a rank holds at once is what schedule and sharding promise.
 *
 *   micro-batches in flight   GPipe: m.  1F1B: min(p - r, m) on stage r
 *   gathered units            zero 3: one and those that are prefetched, beside the embedding where it is the output too;
 *                             all of the stage's where they are not resharded after the forward
 *   bytes                     parameters, gradients, optimizer state as the zero stage says, to the element
 * Limit: exact, from above for what is in flight: less is no fault. Sites: pp.schedule. */
#include <math.h>
#include <string.h>

#include "model/schedule.h"
#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/facts.h"

static int units_bound(const struct record *record, const struct rank_record *rank)
{
    const struct layout *layout = &record->config.layout;
    bool last = facts_is_last_stage(record, rank), tied = record->config.model.tie_embeddings;
    int units = rank->units + (tied && last && layout->pp > 1);
    if (layout->zero != ZERO_3 || !layout->reshard_after_forward) return units;
    int bound = 1 + layout->prefetch + (last ? 1 : 0) + (tied && last ? 1 : 0);
    return bound < units ? bound : units;
}

static void find(struct check_output *output, const struct record *record, const struct rank_record *rank, int held, int due,
                 const char *what)
{
    check_value(output, held, due);
    if (held <= due) return;
    struct finding finding = finding_new(&site_pp_schedule, place_at(rank->rank, -1, -1));
    finding.expected = due;
    finding.got = held;
    finding_pattern(&finding, "holds-more");
    finding_say(&finding, "rank %d (stage %d) holds %d %s at once where %s promises %d at most", rank->rank, rank->stage, held,
                what, record->config.layout.schedule, due);
    check_find(output, &finding);
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    const struct schedule *schedule = schedule_find(record->config.layout.schedule);
    check_value(output, 0, 1);
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        int due = schedule->in_flight(record->config.layout.pp, record->config.layout.microbatches, rank->stage);
        find(output, record, rank, rank->microbatches_peak, due, "micro-batches");
        find(output, record, rank, rank->unsharded_peak, units_bound(record, rank), "gathered units");
    }
}

const struct check check_memory_bound = {
    .id = "memory-bound",
    .proves = "a rank holds no more micro-batches in flight than its schedule promises, and no more gathered units than its "
              "sharding does",
    .tier = "default",
    .run = run,
};
