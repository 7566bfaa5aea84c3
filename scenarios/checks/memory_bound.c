/* memory-bound: what a rank holds at once is what schedule and sharding promise.
 *
 *   micro-batches in flight   GPipe: m.  1F1B: min(p - r, m) on stage r
 *   gathered units            zero 3: one and those that are prefetched, beside the embedding where it is the output too;
 *                             all of the stage's where they are not resharded after the forward
 *   layers held               more of a layer than its input: at most its micro-batches in flight times its layers on a stage;
 *                             one with recompute full, while its backward runs
 *   bytes                     parameters, gradients, optimizer state as zero 0 and 3 say, to the element
 * Limit: exact, from above for what is in flight: less is no fault. Sites: pp.schedule; fsdp.reshard
 * where units were not dropped after a forward. */
#include <math.h>
#include <string.h>

#include "model/schedule.h"
#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/facts.h"

static int experts_units(const struct record *record, const struct rank_record *rank)
{
    int count = 0;
    for (int u = unit_count(&record->config.model); u < gradient_unit_count(&record->config); u++) count += record_has_unit(record, rank, u);
    return count;
}

/* One that computes, with its experts where they are a unit of their own, and those ahead of it; on the last stage the head beside the last layer, and, where it is tied, the
 * embedding that it reads. */
static int units_bound(const struct record *record, const struct rank_record *rank)
{
    const struct layout *layout = &record->config.layout;
    bool last = facts_is_last_stage(record, rank), tied = record->config.model.tie_embeddings;
    int experts = experts_units(record, rank), units = rank->units + experts + (tied && last && layout->pp > 1);
    if (layout->zero != ZERO_3 || !layout->reshard_after_forward) return units;
    int bound = 1 + (experts > 0) + layout->prefetch + (tied && last ? 1 : 0);
    return bound < units ? bound : units;
}

static int layers_bound(const struct record *record, const struct rank_record *rank, int in_flight)
{
    int layers = record->config.layout.layers_per_stage[rank->stage];
    return record->config.layout.recompute.mode == RECOMPUTE_FULL ? layers > 0 : in_flight * layers;
}

/* Elements of a rank's parameters, gradients and moments by the closed form of its zero stage; those that buckets cut
 * (zero 1 and 2) only in sum over the shard group, since who owns what depends on the cuts. */
struct bytes { int64_t param, grad, optimizer; };

static int64_t padded(int64_t elements)
{
    return (elements + 15) / 16 * 16;
}

static void add_unit_bytes(const struct record *record, const struct rank_record *rank, int unit, struct bytes *sum)
{
    const struct layout *layout = &record->config.layout;
    bool whole = layout->zero == ZERO_0, apart = !whole || record->config.precision.param != record->config.precision.master;
    for (int p = 0; p < record->params.count; p++) {
        const struct param *param = &record->params.params[p];
        if (param->unit != unit || (unit_is_experts(&record->config.model, unit) && !record_has_param(record, rank, p))) continue;
        int shards = layout_shards(layout) / (unit_is_experts(&record->config.model, unit) ? layout_ep_shards(layout) : 1);
        int64_t elements = facts_elements_of(record, p), cut_rows = facts_rows_of(record, p), columns = elements / cut_rows;
        int64_t full = padded(elements), rows = (cut_rows + shards - 1) / shards;
        int64_t own = whole ? full : rows * columns, moments = record->frozen[p] ? 0 : own;
        sum->param += whole ? full : own;
        sum->grad += full + moments;
        sum->optimizer += 2 * moments + (whole && apart ? own : 0);
    }
}

static void check_bytes(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    const struct record *record = e->parallel;
    struct bytes due = {0};
    bool copy = record->config.model.tie_embeddings && record->config.layout.pp > 1 && facts_is_last_stage(record, rank);
    int64_t width = (int64_t)format_storage_bytes(run_storage(&record->config));
    if (record->config.layout.zero == ZERO_1 || record->config.layout.zero == ZERO_2) return;
    for (int u = 0; u < gradient_unit_count(&record->config); u++) {
        if (record_has_unit(record, rank, u)) add_unit_bytes(record, rank, u, &due);
    }
    if (copy) add_unit_bytes(record, rank, 0, &due);
    const struct { const char *what; int64_t held, due; } sums[] = {
        {"parameters", rank->param_bytes, due.param * width},
        {"gradients", rank->grad_bytes, due.grad * width},
        {"optimizer state", rank->optimizer_bytes, due.optimizer * width},
    };
    for (size_t i = 0; i < sizeof sums / sizeof sums[0]; i++) {
        check_value(output, sums[i].held != sums[i].due, 0);
        if (sums[i].held == sums[i].due) continue;
        struct finding finding = finding_new(NULL, place_at(rank->rank, -1, -1));
        finding.expected = (double)sums[i].due;
        finding.got = (double)sums[i].held;
        finding_pattern(&finding, "bytes");
        finding_say(&finding, "rank %d holds %lld bytes of %s where zero %d comes to %lld", rank->rank, (long long)sums[i].held,
                    sums[i].what, record->config.layout.zero, (long long)sums[i].due);
        check_find(output, &finding);
    }
}

static void find(struct check_output *output, const struct record *record, const struct rank_record *rank, const struct site *site,
                 int held, int due, const char *what)
{
    check_value(output, held, due);
    if (held <= due) return;
    struct finding finding = finding_new(site, place_at(rank->rank, -1, -1));
    finding.expected = due;
    finding.got = held;
    finding_pattern(&finding, "holds-more");
    finding_say(&finding, "rank %d (stage %d) holds %d %s at once where %s promises %d at most", rank->rank, rank->stage, held,
                what, record->config.layout.schedule, due);
    check_find(output, &finding);
}

/* Was a unit left gathered after a forward, against the layout? */
static bool kept_gathered(const struct record *record, const struct rank_record *rank)
{
    for (int step = 0; step < record->config.train.steps; step++) {
        if (facts_was_chosen(rank, &site_fsdp_reshard, step, -1)) return true;
    }
    return false;
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    const struct schedule *schedule = schedule_find(record->config.layout.schedule);
    check_value(output, 0, 1);
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        int due = schedule->in_flight(record->config.layout.pp, record->config.layout.microbatches, rank->stage);
        find(output, record, rank, &site_pp_schedule, rank->microbatches_peak, due, "micro-batches");
        find(output, record, rank, &site_pp_schedule, rank->layers_peak, layers_bound(record, rank, due), "layers' activations");
        find(output, record, rank, kept_gathered(record, rank) ? &site_fsdp_reshard : &site_pp_schedule, rank->unsharded_peak, units_bound(record, rank), "gathered units");
        check_bytes(e, output, rank);
    }
}

const struct check check_memory_bound = {
    .id = "memory-bound",
    .proves = "a rank holds no more micro-batches in flight than its schedule promises, and no more gathered units than its "
              "sharding does",
    .tier = "default",
    .measures = "number held at once",
    .run = run,
};
