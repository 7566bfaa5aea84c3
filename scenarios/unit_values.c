/* unit_values: shards by name and row range into whole parameters, then the kernels' own sketch, whose bits are the
 * same on every CPU path. */
#include "scenarios/unit_values.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/ops.h"
#include "model/precision.h"

struct unit_values unit_values_new(const struct record *record)
{
    struct error error = {0};
    return (struct unit_values){record, ops_get(run_storage(&record->config), NULL, "fixed", &error),
                                tensor_groups_new(record)};
}

void unit_values_free(struct unit_values *values)
{
    free(values->groups.entries);
}

/* Does this holder's part belong to the whole that `of` exchanges with? */
static bool belongs(const struct record *record, const struct rank_record *holder, const struct rank_record *of, bool frozen)
{
    int zero = record->config.layout.zero;
    if (holder->stage != of->stage || holder->tp != of->tp) return false;
    return zero == ZERO_0 || (frozen && zero != ZERO_3) ? holder == of : holder->replicate == of->replicate;
}

/* One parameter's elements; false where not all are there. */
static bool put_together(const struct unit_values *v, const struct rank_record *of, enum tensor_kind kind, int step,
                         int param, int lives, char *values)
{
    size_t bytes = format_storage_bytes(run_storage(&v->record->config));
    int64_t elements = 0;
    for (int i = tensor_groups_first(&v->groups, step, kind, param, lives); i < v->groups.count; i++) {
        const struct tensor_fact *fact = v->groups.entries[i].fact;
        if (fact->step != step || fact->kind != kind || fact->param != param || fact->unit != lives) break;
        if (!belongs(v->record, &v->record->rank[v->groups.entries[i].rank], of, v->record->frozen[param])) continue;
        memcpy(values + (size_t)fact->first * bytes, fact->data, (size_t)fact->elements * bytes);
        elements += fact->elements;
    }
    return elements == facts_elements_of(v->record, param);
}

static bool sketch_unit(const struct unit_values *v, int rank, enum tensor_kind kind, int step, int unit,
                        uint64_t *ret_digest, double ret_sum[5])
{
    const struct record *record = v->record;
    enum format storage = run_storage(&record->config);
    size_t bytes = format_storage_bytes(storage);
    bool copy = unit == 0 && record->rank[rank].stage > 0,
         all = v->ops != NULL; /* copy: of the tied embedding, with the head */
    *ret_digest = 0;
    memset(ret_sum, 0, 5 * sizeof ret_sum[0]);
    for (int p = 0; all && p < record->params.count; p++) {
        const struct param *param = &record->params.params[p];
        if (param->unit != unit || (unit_is_experts(&record->config.model, unit) && !record_has_param(record, &record->rank[rank], p)) || (kind == TENSOR_GRADIENT && record->frozen[p])) continue;
        size_t count = (size_t)facts_elements_of(record, p);
        char *values = memory_alloc(count * bytes + 1);
        all = put_together(v, &record->rank[rank], kind, step, p, copy ? unit_count(&record->config.model) - 1 : unit,
                           values);
        if (all) {
            double sketch[5] = {0};
            if (kind == TENSOR_GRADIENT) {
                v->ops->vector_sketch(sketch, values, count);
            } else { /* as computing reads them */
                vector_round(values, count, storage, record->config.precision.param);
                *ret_digest = version_digest(*ret_digest, v->ops->vector_checksum(values, count));
            }
            for (int k = 0; k < 5; k++) ret_sum[k] += sketch[k];
        }
        free(values);
    }
    return all;
}

bool unit_values_digest(const struct unit_values *values, int rank, int step, int unit, uint64_t *ret_digest)
{
    double sum[5];
    return sketch_unit(values, rank, TENSOR_PARAM, step, unit, ret_digest, sum);
}

bool unit_values_gradient(const struct unit_values *values, int rank, int step, int unit, double ret_sketch[5])
{
    uint64_t digest;
    return sketch_unit(values, rank, TENSOR_GRADIENT, step, unit, &digest, ret_sketch);
}

/* Adds the sketches of what rank put into reductions of this unit in the step, each over its divisor; slices: only of what is
 * summed over tp behind them (parallel.sequence_parallel). */
static void add_local_sketches(const struct rank_record *rank, int step, int unit, bool slices, double divisor, double sum[4],
                               double *norms)
{
    for (int i = 0; i < rank->gradients.count; i++) {
        const struct gradient_fact *fact = &rank->gradients.items[i];
        if (fact->step != step || fact->unit != unit || fact->stage != GRADIENT_LOCAL) continue;
        const double *sketch = slices ? fact->slice_sketch : fact->sketch;
        for (int k = 0; k < 4; k++) sum[k] += sketch[k] / divisor;
        *norms += sqrt(sketch[4]) / fabs(divisor);
    }
}

double unit_values_sum_limit(const struct record *record)
{
    /* In a narrow format each addition rounds each element by chance: the sum of their errors over a sketch grows with the
     * root of the additions. */
    const struct layout *layout = &record->config.layout;
    double narrow = facts_reduction_roundoff(&record->config), storage = facts_storage_roundoff(&record->config);
    double additions = layout->dp_replicate * layout_shards(layout) * (layout->sync == SYNC_EACH_MICROBATCH ? layout->microbatches : 1) + 2;
    return fmax(64 * storage, narrow > storage ? 4 * narrow * sqrt(additions) : 0);
}

double unit_values_sum_error(const struct unit_values *values, int rank, int step, int unit)
{
    const struct record *record = values->record;
    const struct rank_record *of = &record->rank[rank];
    bool tied = unit == 0 && record->config.model.tie_embeddings && record->config.layout.pp > 1;
    const struct scale_fact *scale = facts_scale(of, step);
    double sum[4] = {0}, norms = 0, reduced[5], divisor = facts_unit_divisor_due(&record->config, unit) * (scale ? scale->scale : 1), worst = 0;
    if (scale && scale->found) return 0; /* it overflowed, and loss scaling found that */
    if (!unit_values_gradient(values, rank, step, unit, reduced)) return 0;
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *from = &record->rank[r];
        bool slices = from->tp != of->tp;
        struct rank_record beside = *from; /* the rank of `of`'s own tp coordinate that it stands for */
        if (slices && !layout_slices_sequences(&record->config.layout) && !record->config.model.qk_norm) continue;
        beside.tp = of->tp;
        bool member = facts_shares_unit(record, &beside, of, unit);
        if (tied && (from->stage == 0 || facts_is_last_stage(record, from))) member = facts_shares_shards(record, &beside, of, unit);
        double after = facts_grad_scale(record, of, step, unit);
        if (member) add_local_sketches(from, step, unit, slices, divisor / after, sum, &norms);
    }
    if (!isfinite(norms)) return 0; /* it went in like that */
    for (int k = 0; k < 4; k++) {
        double error = fabs(reduced[k] - sum[k]) / fmax(norms, 1e-300);
        if (!isnan(worst) && !(error <= worst)) worst = error;
    }
    return worst;
}
