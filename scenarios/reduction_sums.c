/* reduction_sums: see the header. Limit: 64 roundings of the coarsest format on the way, times the members, of all norms. */
#include "scenarios/reduction_sums.h"

#include <math.h>

#include "model/sites.h"

static bool is_second(const struct site *site)
{
    return site == &site_hsdp_replicate_reduce || site == &site_tied_grad_reduce;
}

/* Who adds up with whom, by the layout. */
static bool is_member(const struct record *record, const struct rank_record *rank, const struct rank_record *other, const struct site *site)
{
    if (other->tp != rank->tp) return false;
    if (site == &site_tied_grad_reduce)
        return other->data_rank == rank->data_rank && (other->stage == 0 || facts_is_last_stage(record, other));
    if (other->stage != rank->stage) return false;
    if (site == &site_hsdp_replicate_reduce) return other->shard == rank->shard;
    int any = site == &site_ep_reduce_grad ? unit_count(&record->config.model) : 0; /* of that kind */
    return facts_shares_unit(record, rank, other, any) && (record->config.layout.zero < ZERO_2 || other->replicate == rank->replicate);
}

static const struct reduction_fact *same_reduction(const struct rank_record *rank, const struct reduction_fact *like)
{
    for (int i = 0; i < rank->reductions.count; i++) {
        const struct reduction_fact *fact = &rank->reductions.items[i];
        if (fact->site == like->site && fact->step == like->step && fact->microbatch == like->microbatch && fact->bucket == like->bucket)
            return fact;
    }
    return NULL;
}

bool reduction_sum_is_wrong(const struct record *record, const struct rank_record *rank, const struct reduction_fact *fact)
{
    double sum[4] = {0}, norms = 0;
    int members = 0;
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *member = &record->rank[r];
        if (!is_member(record, rank, member, fact->site)) continue;
        const struct reduction_fact *part = same_reduction(member, fact);
        if (!part) return false;
        const double *sent = part->sent + (part->parts > 1 ? 5 * (rank->shard / (fact->site == &site_ep_reduce_grad ? layout_ep_shards(&record->config.layout) : 1)) : 0);
        for (int k = 0; k < 4; k++) sum[k] += sent[k];
        norms += sqrt(sent[4]);
        members++;
    }
    if (!isfinite(norms)) return false;
    double limit = 64 * facts_reduction_roundoff(&record->config) * members * norms;
    for (int k = 0; k < 4; k++) {
        if (!(fabs(fact->received[k] - sum[k]) <= limit)) return true;
    }
    return false;
}

bool reduction_sums_any_wrong(const struct record *record, const struct site *site, int step)
{
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].reductions.count; i++) {
            const struct reduction_fact *fact = &record->rank[r].reductions.items[i];
            if (fact->site == site && fact->step == step && reduction_sum_is_wrong(record, &record->rank[r], fact)) return true;
        }
    }
    return false;
}

const struct site *reduction_sums_second(const struct record *record, const struct rank_record *rank, int step, int unit)
{
    const struct site *found = NULL;
    bool any = false, zeros = true;
    for (int i = 0; i < rank->reductions.count; i++) {
        const struct reduction_fact *fact = &rank->reductions.items[i];
        if (!is_second(fact->site) || fact->step != step || fact->bucket != unit || found == &site_hsdp_replicate_reduce) continue;
        any = true;
        zeros = zeros && fact->sent[4] == 0;
        if (reduction_sum_is_wrong(record, rank, fact)) found = fact->site;
    }
    if (found || !any || !zeros || reduction_sums_any_wrong(record, facts_reduction_site(&record->config, unit), step)) return found;
    if (reduction_sums_any_wrong(record, &site_hsdp_replicate_reduce, step)) return &site_hsdp_replicate_reduce;
    return unit == 0 && reduction_sums_any_wrong(record, &site_tied_grad_reduce, step) ? &site_tied_grad_reduce : NULL;
}
