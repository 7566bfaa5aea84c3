/* unit_gradient: a unit's gradient before and after its reduction. Order of additions: micro-batches ascending in the
 * accumulator, then members in the order of the collective's algorithm, then (sync at each micro-batch) reductions
 * ascending. See unit.h. */
#include "model/unit.h"

#include <string.h>

#include "model/choices.h"
#include "model/params.h"
#include "model/precision.h"
#include "model/vectors.h"

void unit_reduced_ledger(const struct unit *unit, struct ledger *ret)
{
    ledger_copy(ret, &unit->pieces[0].reduced_ledger);
    for (int k = 1; k < unit->pieces_count; k++) {
        const struct ledger *other = &unit->pieces[k].reduced_ledger;
        if (ret->tag_sum == other->tag_sum && ret->count == other->count) continue;
        struct ledger both;
        ledger_init(&both);
        for (int i = 0; i < ret->count; i++) {
            const struct ledger_term *a = &ret->terms[i], *b = ledger_find(other, a->origin);
            if (b) ledger_add_term(&both, a->origin, a->times < b->times ? a->times : b->times, a->times < b->times ? a->scale : b->scale);
        }
        ledger_copy(ret, &both);
        ledger_done(&both);
    }
}

void unit_scale_reduced(struct unit *unit, const struct unit_context *context, double factor)
{
    enum format storage = context->ops->storage;
    if (factor == 1) return;
    context->ops->vector_scale(unit->reduced, factor, unit->shard_trained_count + (size_t)unit->pieces_count * unit->probe_count);
    vector_round(unit->reduced, unit->shard_trained_count, storage, context->config->precision.accumulate);
    for (int k = 0; k < unit->pieces_count; k++) ledger_scale(&unit->pieces[k].reduced_ledger, factor);
}

/* An accumulator that nothing is in holds zeros. */
static void look_for_leftovers(const struct unit *unit, const struct unit_context *context, struct where where)
{
    if (unit->grad_ledger.count > 0 || context->ops->vector_sum_squares(unit->grad, unit->trained_count) == 0) return;
    struct poison_fact fact = {where.step, where.microbatch, unit->index, &site_dp_grad_buffer,
                               "a gradient is added to a buffer that holds other numbers than zeros, though nothing was added before"};
    record_push(context->record, poisons, fact);
}

void unit_begin_gradient(struct unit *unit, const struct unit_context *context, struct where where)
{
    struct site_plan *plan = context->plan;
    if (unit->begun_microbatch == where.microbatch || unit->trained_count == 0) return;
    unit->begun_microbatch = where.microbatch;
    look_for_leftovers(unit, context, where);
    bool zero = choice_site(plan, context->record, &site_dp_zero_grad, where, unit->index, false);
    bool add = choice_site(plan, context->record, &site_dp_grad_add, where, unit->index, true);
    unit->is_narrow = !choice_site(plan, context->record, &site_dp_reduce_source, where, unit->index, true);
    if (zero || !add || unit->is_narrow) unit_clear_accumulator(unit, context->ops->storage);
}

void unit_zero_gradient(struct unit *unit, const struct unit_context *context, struct where where)
{
    unit->begun_microbatch = -1;
    if (unit->sharded || unit->trained_count == 0) return;
    int64_t count = (int64_t)unit->trained_count;
    struct memory_range zeroed = memory_site(context->plan, context->record, &site_dp_param_buffer, where, unit->index, count);
    memset(unit->full, 0, (size_t)zeroed.from * format_storage_bytes(context->ops->storage)); /* as far as it reaches beyond its end */
}

bool unit_has_gradient(const struct unit *unit)
{
    for (int k = 0; k < unit->pieces_count; k++) {
        if (unit->pieces[k].reduced_ledger.count > 0) return true;
    }
    return false;
}

void unit_clear_accumulator(struct unit *unit, enum format storage)
{
    memset(unit->grad, 0, unit->full_count * format_storage_bytes(storage));
    memset(unit->grad_probes, 0, unit->probe_count * format_storage_bytes(storage));
    ledger_clear(&unit->grad_ledger);
    unit->is_unreduced = false;
}

/* The reduced numbers: probes of every piece (they are equal unless a piece went its own way), finiteness. */
static void note_reduced(const struct unit *unit, const struct unit_context *context, struct gradient_fact *fact)
{
    enum format storage = context->ops->storage;
    size_t count = (size_t)unit->pieces_count * unit->probe_count;
    double *probe = arena_alloc(context->record->arena, count * sizeof *probe);
    for (size_t i = 0; i < count; i++) probe[i] = format_get(unit->reduced, unit->shard_trained_count + i, storage);
    fact->pieces = unit->pieces_count;
    fact->probe_count = (int)unit->probe_count;
    fact->probe = probe;
    double squares = context->ops->vector_sum_squares(unit->reduced, unit->shard_trained_count);
    fact->finite = squares - squares == 0;
}

void unit_record_gradient(const struct unit *unit, const struct unit_context *context, int step, int microbatch,
                          enum gradient_stage stage, int call_layer)
{
    struct gradient_fact fact = {.step = step, .microbatch = microbatch, .unit = unit->index, .stage = stage,
                                 .call_layer = call_layer, .finite = true};
    ledger_init(&fact.ledger);
    if (stage == GRADIENT_REDUCED || stage == GRADIENT_SCATTERED) {
        unit_reduced_ledger(unit, &fact.ledger);
        note_reduced(unit, context, &fact);
    } else {
        ledger_copy(&fact.ledger, &unit->grad_ledger);
    }
    for (int i = 0; stage == GRADIENT_LOCAL && i < unit->count; i++) {
        const struct unit_param *p = &unit->params[i];
        double sketch[5];
        if (p->frozen) continue;
        context->ops->vector_sketch(sketch, element_at(unit->grad, p->full_at, context->ops->storage), (size_t)(p->rows * p->columns));
        bool slice = param_sees_part(&context->config->layout, p->info);
        for (int k = 0; k < 5; k++) {
            fact.sketch[k] += sketch[k];
            fact.slice_sketch[k] += slice ? sketch[k] : 0;
        }
        fact.finite = fact.sketch[4] - fact.sketch[4] == 0;
    }
    record_push(context->record, gradients, fact);
}
