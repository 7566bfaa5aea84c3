/* oracle_inputs: see the header. What is not known (no counterpart) agrees. */
#include "scenarios/oracle_inputs.h"

#include <math.h>
#include <string.h>

static bool is_wrong(const struct difference *d)
{
    return d && d->wrong;
}

/* What came over a boundary is, to the bit, what was sent. */
static bool arrived(const struct comparison *c, int step, int sequence, int unit, int from, bool backward)
{
    struct sketch_entry in =
        sketch_table_at(&c->sketches, step, sequence, unit, backward ? SKETCH_BACKWARD_IN : SKETCH_FORWARD_IN);
    struct sketch_entry out =
        sketch_table_at(&c->sketches, step, sequence, from, backward ? SKETCH_BACKWARD_OUT : SKETCH_FORWARD_OUT);
    return !in.fact || !out.fact || !memcmp(in.fact->value, out.fact->value, sizeof in.fact->value);
}

static bool versions_agree(const struct comparison *c, int step, int unit, int sequence)
{
    struct microbatch_place place = facts_place_of(c->parallel, sequence);
    const struct rank_record *rank =
        facts_rank(c->parallel, layout_stage_of_unit(&c->parallel->config.layout, &c->parallel->config.model, unit), place.data_rank);
    for (int i = 0; rank && i < rank->versions.count; i++) {
        const struct version_fact *fact = &rank->versions.items[i];
        bool here =
            unit_boundary(&c->parallel->config.model, fact->unit) == unit || (unit == c->units - 1 && fact->unit == 0 && c->parallel->config.model.tie_embeddings);
        if (!here || fact->step != step || fact->microbatch != place.microbatch) continue;
        if (fact->version_min != step || fact->version_max != step) return false;
        if (fact->shards != fact->shards_due) return false;
    }
    return true;
}

bool oracle_forward_inputs_agree(const struct comparison *c, int step, int unit, int sequence)
{
    return !is_wrong(comparison_forward(c, step, unit - 1, sequence)) &&
           arrived(c, step, sequence, unit, unit - 1, false) && comparison_unit_params_agree(c, step - 1, unit) &&
           versions_agree(c, step, unit, sequence);
}

bool oracle_backward_inputs_agree(const struct comparison *c, int step, int unit, int sequence)
{
    return !is_wrong(comparison_backward(c, step, unit + 1, sequence)) &&
           arrived(c, step, sequence, unit, unit + 1, true) && !is_wrong(comparison_forward(c, step, unit, sequence)) &&
           oracle_forward_inputs_agree(c, step, unit, sequence);
}

/* Every probe of every holder of the unit's gradient is at its due weight. */
static bool weights_agree(const struct comparison *c, int step, int unit)
{
    const struct record *record = c->parallel;
    int half = layout_data_ranks(&record->config.layout) * record->config.layout.microbatches;
    int M = record->config.layout.microbatches;
    double uses = unit == 0 && record->config.model.tie_embeddings ? 2 : 1;
    double roundings = 64 * facts_storage_roundoff(&record->config);
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].gradients.count; i++) {
            const struct gradient_fact *fact = &record->rank[r].gradients.items[i];
            if (fact->step != step || fact->unit != unit || fact->stage != GRADIENT_REDUCED) continue;
            for (int k = 0; k < fact->pieces * fact->probe_count && fact->probe_count >= 2 * half; k++) {
                double due = uses * loss_weight_due(record, step, k % half / M, k % M);
                if (!(fabs(fact->probe[k] - (k % fact->probe_count / half == (step & 1) ? due : 0)) <= roundings * due)) return false;
            }
        }
    }
    return true;
}

/* What every holder has is the sum of what went in. */
static bool sums_agree(const struct unit_values *values, int step, int unit)
{
    for (int r = 0; r < values->record->ranks; r++) {
        const struct rank_record *rank = &values->record->rank[r];
        if (!record_has_unit(values->record, rank, unit)) continue;
        if (!(unit_values_sum_error(values, r, step, unit) <= unit_values_sum_limit(values->record))) return false;
    }
    return true;
}

bool oracle_gradient_inputs_agree(const struct comparison *c, const struct unit_values *values, int step, int param)
{
    int unit = c->parallel->params.params[param].unit;
    if (!weights_agree(c, step, unit) || !sums_agree(values, step, unit)) return false;
    unit = unit_boundary(&c->parallel->config.model, unit);
    for (int sequence = 0; sequence < c->sequences; sequence++) {
        struct microbatch_place place = facts_place_of(c->parallel, sequence);
        if (!facts_sample_is_due(c->parallel, step, place.data_rank, place.microbatch)) return false;
        if (is_wrong(comparison_forward(c, step, unit, sequence)) ||
            is_wrong(comparison_backward(c, step, unit, sequence)))
            return false;
        if (!oracle_forward_inputs_agree(c, step, unit, sequence)) return false;
        if (is_wrong(comparison_backward(c, step, unit + 1, sequence)) ||
            !arrived(c, step, sequence, unit, unit + 1, true))
            return false;
    }
    return true;
}

double oracle_inputs_error(const struct comparison *c, int step, int unit, int sequence, bool backward)
{
    const struct difference *input = comparison_forward(c, step, unit - 1, sequence);
    const struct difference *gradient = backward ? comparison_backward(c, step, unit + 1, sequence) : NULL;
    double error = comparison_unit_params_error(c, step - 1, unit);
    if (input) error = fmax(error, input->error);
    if (gradient) error = fmax(error, gradient->error);
    return error;
}
