/* sequence_sums: see the header. Limit of a sum: 64 roundings of the coarsest format on the way, times the members, of all norms,
 * and as often the smallest number of the narrowest format an element. */
#include "scenarios/sequence_sums.h"

#include <math.h>

#include "model/params.h"
#include "model/precision.h"
#include "model/sites.h"

int64_t sequence_sums_elements(const struct record *record, const struct rank_record *rank, int step, int unit)
{
    int64_t count = 0;
    for (int i = 0; i < rank->updates.count; i++) {
        const struct update_fact *fact = &rank->updates.items[i];
        if (fact->step != step || fact->unit != unit || record->frozen[fact->param]) continue;
        if (param_sees_part(&record->config.layout, &record->params.params[fact->param].info)) count += fact->elements;
    }
    return count;
}

/* Those of the ranks that a rank's sums are over. */
static bool is_neighbour(const struct rank_record *rank, const struct rank_record *other)
{
    return other->stage == rank->stage && other->replicate == rank->replicate && other->shard == rank->shard;
}

bool tensor_sum_is_wrong(const struct record *record, const struct rank_record *rank, int i)
{
    const struct sum_fact *of = &rank->sums.items[i];
    double sum[4] = {0}, got[4] = {0}, norms = 0;
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *other = &record->rank[r];
        if (!is_neighbour(rank, other)) continue;
        const struct sum_fact *fact = i < other->sums.count ? &other->sums.items[i] : NULL;
        if (!fact || fact->site != of->site || fact->step != of->step || fact->microbatch != of->microbatch || fact->unit != of->unit) return false;
        for (int k = 0; k < 4; k++) {
            sum[k] += fact->sent[k];
            if (of->scattered || other == rank) got[k] += fact->received[k];
        }
        norms += sqrt(fact->sent[4]);
    }
    if (!isfinite(norms)) return false; /* it went in like that */
    const struct model_config *model = &record->config.model;
    const struct precision *precision = &record->config.precision;
    double columns = fmax(model->dim, fmax(model->mla.q_lora_rank, model->mla.kv_lora_rank));
    double elements = columns * layout_sequences_per_microbatch(&record->config) * model->seq;
    double underflow = precision_smallest(precision) * sqrt(elements); /* the norm of what may become 0 */
    double format = of->microbatch < 0 ? facts_reduction_roundoff(&record->config) : precision_roundoff(precision);
    double limit = 64 * record->config.layout.tp * (format * norms + underflow);
    bool overflows = norms >= format_traits[of->microbatch < 0 ? precision->reduce : precision_activation(precision)].largest; /* then an element of the sum may */
    for (int k = 0; k < 4; k++) {
        if (overflows && !isfinite(got[k])) continue;
        if (!(fabs(got[k] - sum[k]) <= limit)) return true;
    }
    return false;
}

double sequence_sums_divisor(const struct rank_record *rank, int step, int unit)
{
    for (int i = 0; i < rank->factors.count; i++) {
        const struct factor_fact *fact = &rank->factors.items[i];
        if (fact->site == &site_sp_grad_divisor && fact->step == step && fact->unit == unit) return 1 / fact->value;
    }
    return 1;
}

const struct site *sequence_sums_other(const struct record *record, const struct rank_record *rank, int step, int unit)
{
    if (sequence_sums_elements(record, rank, step, unit) == 0) return NULL;
    if (facts_was_chosen(rank, &site_tp_tag, -1, unit)) return &site_tp_tag;
    if (facts_was_chosen(rank, &site_tp_adapter_placement, -1, unit)) return &site_tp_adapter_placement;
    if (facts_was_chosen(rank, &site_moe_router_grad, step, unit)) return &site_moe_router_grad;
    if (facts_was_chosen(rank, &site_tp_head_norm_grad, step, unit)) return &site_tp_head_norm_grad;
    if (facts_was_chosen(rank, &site_sp_grad, step, unit)) return &site_sp_grad;
    if (sequence_sums_divisor(rank, step, unit) != 1) return &site_sp_grad_divisor;
    for (int i = 0; i < rank->sums.count; i++) {
        const struct sum_fact *fact = &rank->sums.items[i];
        if (fact->site == &site_sp_grad_reduce && fact->step == step && fact->unit == unit && tensor_sum_is_wrong(record, rank, i)) return &site_sp_grad_reduce;
    }
    return NULL;
}
