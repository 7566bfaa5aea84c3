/* unit: see unit.h. Order of a gradient's additions: micro-batches ascending in the accumulator, then
 * members in the order of the collective's algorithm, then (sync at each micro-batch) reductions ascending. */
#include "model/unit.h"

#include <string.h>

#include "model/deviations.h"
#include "model/vectors.h"
#include "sim/assertion.h"

static char *at(const void *data, size_t element, enum format storage)
{
    return (char *)data + element * format_storage_bytes(storage);
}

void unit_init(struct unit *unit, const struct unit_context *context, int index, int part, const int *params,
               int params_count, const struct param_table *table, bool sharded)
{
    enum format storage = context->ops->storage;
    size_t bytes = format_storage_bytes(storage);
    int shards = sharded ? context->shard_group->size : 1, me = sharded ? context->shard_group->me : 0;
    *unit = (struct unit){.index = index, .part = part, .count = params_count, .sharded = sharded};
    for (int i = 0; i < params_count; i++) {
        struct unit_param *p = &unit->params[i];
        p->param = params[i];
        p->dims = table->params[params[i]].info.dims;
        p->rows = table->params[params[i]].rows;
        p->columns = table->params[params[i]].columns;
        p->shard_rows = (p->rows + shards - 1) / shards;
        p->first_row = p->shard_rows * me < p->rows ? p->shard_rows * me : p->rows;
        p->my_rows = p->rows - p->first_row < p->shard_rows ? p->rows - p->first_row : p->shard_rows;
        p->full_at = unit->full_count;
        p->shard_at = unit->shard_count;
        unit->full_count += (size_t)((p->rows * p->columns + 15) / 16 * 16); /* 64-byte aligned starts */
        unit->shard_count += sharded ? (size_t)(p->shard_rows * p->columns)
                                     : (size_t)((p->rows * p->columns + 15) / 16 * 16);
    }
    unit->probe_count = (size_t)(2 * context->data_ranks * context->microbatches);
    unit->shard = arena_zalloc(context->arena, unit->shard_count * bytes);
    unit->full = sharded ? arena_alloc(context->arena, unit->full_count * bytes) : unit->shard;
    unit->unsharded = !sharded;
    unit->grad = arena_zalloc(context->arena, (unit->full_count + unit->probe_count) * bytes);
    unit->grad_shard = arena_zalloc(context->arena, (unit->shard_count + unit->probe_count) * bytes);
    unit->pending = arena_zalloc(context->arena, (unit->shard_count + unit->probe_count) * bytes);
    unit->moment1 = arena_zalloc(context->arena, unit->shard_count * bytes);
    unit->moment2 = arena_zalloc(context->arena, unit->shard_count * bytes);
    ledger_add_term(&unit->shard_version, (struct origin){0, me, -1, index}, 1, 1);
    if (!sharded) ledger_copy(&unit->full_version, &unit->shard_version);
}

void unit_done(struct unit *unit)
{
    ledger_done(&unit->shard_version);
    ledger_done(&unit->full_version);
    ledger_done(&unit->grad_ledger);
    ledger_done(&unit->grad_shard_ledger);
    ledger_done(&unit->pending_ledger);
}

size_t unit_work_count(const struct unit *unit, int shards)
{
    return (unit->shard_count + unit->probe_count) * (size_t)shards;
}

static struct tensor view(const struct unit_param *p, void *data, enum format storage)
{
    void *start = at(data, p->full_at, storage);
    return p->dims == 1 ? tensor_1d(start, storage, p->rows) : tensor_2d(start, storage, p->rows, p->columns);
}

struct tensor unit_param_tensor(const struct unit *unit, int i, enum format storage)
{
    ASSERT(unit->unsharded);
    return view(&unit->params[i], unit->full, storage);
}

struct tensor unit_grad_tensor(const struct unit *unit, int i, enum format storage)
{
    return view(&unit->params[i], unit->grad, storage);
}

void *unit_probes(const struct unit *unit, enum format storage)
{
    return at(unit->grad, unit->full_count, storage);
}

static void sketch_gradient(const struct unit *unit, const struct unit_context *context, int i, double ret[5])
{
    const struct unit_param *p = &unit->params[i];
    context->ops->vector_sketch(ret, at(unit->grad, p->full_at, context->ops->storage), (size_t)(p->rows * p->columns));
}

static void note_versions(const struct unit *unit, const struct unit_context *context, struct where where, bool backward,
                          bool gathered)
{
    struct version_fact fact = {.step = where.step, .microbatch = where.microbatch, .unit = unit->index,
                                .backward = backward, .version_min = INT32_MAX, .version_max = INT32_MIN};
    for (int i = 0; i < unit->full_version.count; i++) {
        struct origin origin = unit->full_version.terms[i].origin;
        if (origin.step < fact.version_min) fact.shard_min = origin.rank;
        if (origin.step < fact.version_min) fact.version_min = origin.step;
        if (origin.step > fact.version_max) fact.version_max = origin.step;
        if (unit->full_version.terms[i].times == 1 && unit->full_version.terms[i].scale == 1) fact.shards++;
    }
    for (int i = 0; gathered && i < unit->count; i++) {
        const struct unit_param *p = &unit->params[i];
        const void *values = at(unit->full, p->full_at, context->ops->storage);
        fact.digest = version_digest(fact.digest, context->ops->vector_checksum(values, (size_t)(p->rows * p->columns)));
    }
    record_push(context->record, versions, fact);
}

void unit_unshard(struct unit *unit, const struct unit_context *context, struct where where, bool backward)
{
    enum format storage = context->ops->storage;
    bool gather = !unit->unsharded;
    if (gather) {
        size_t shards = (size_t)context->shard_group->size;
        struct comm how = {.site = &site_fsdp_unshard, .where = where};
        struct buffer in = {unit->shard, unit->shard_count, storage, storage, &unit->shard_version};
        struct buffer out = {context->gathered, unit->shard_count * shards, storage, storage, &unit->full_version};
        all_gather(context->communicator, context->shard_group, &how, out, in, NULL);
        for (int i = 0; i < unit->count; i++) {
            const struct unit_param *p = &unit->params[i];
            for (size_t s = 0; s < shards; s++) {
                int64_t first = p->shard_rows * (int64_t)s, rows = p->rows - first;
                if (rows <= 0) break;
                if (rows > p->shard_rows) rows = p->shard_rows;
                memcpy(at(unit->full, p->full_at + (size_t)(first * p->columns), storage),
                       at(context->gathered, s * unit->shard_count + p->shard_at, storage),
                       (size_t)(rows * p->columns) * format_storage_bytes(storage));
            }
        }
        unit->unsharded = true;
    }
    note_versions(unit, context, where, backward, gather);
}

/* Freed parameters must not be read again: one number in each parameter's row becomes NaN, which any use
 * of the whole parameter spreads; filling all of it would cost as much as the gather. */
void unit_reshard(struct unit *unit, enum format storage)
{
    if (!unit->sharded || !unit->unsharded) return;
    for (int i = 0; i < unit->count; i++) {
        const struct unit_param *p = &unit->params[i];
        for (int64_t row = 0; row < p->rows; row++) {
            memory_poison(at(unit->full, p->full_at + (size_t)(row * p->columns), storage), format_storage_bytes(storage));
        }
    }
    unit->unsharded = false;
}

void unit_record_gradient(const struct unit *unit, const struct unit_context *context, int step, int microbatch,
                          enum gradient_stage stage)
{
    enum format storage = context->ops->storage;
    struct gradient_fact fact = {.step = step, .microbatch = microbatch, .unit = unit->index, .stage = stage, .finite = true};
    const struct ledger *ledger = stage == GRADIENT_REDUCED ? &unit->grad_shard_ledger : &unit->grad_ledger;
    ledger_init(&fact.ledger);
    ledger_copy(&fact.ledger, ledger);
    if (stage == GRADIENT_REDUCED) {
        double *probe = arena_alloc(context->record->arena, unit->probe_count * sizeof *probe);
        for (size_t i = 0; i < unit->probe_count; i++) probe[i] = format_get(unit->grad_shard, unit->shard_count + i, storage);
        fact.probe_count = (int)unit->probe_count;
        fact.probe = probe;
        double squares = context->ops->vector_sum_squares(unit->grad_shard, unit->shard_count);
        fact.finite = squares - squares == 0;
    }
    for (int i = 0; stage == GRADIENT_LOCAL && i < unit->count; i++) {
        double sketch[5];
        sketch_gradient(unit, context, i, sketch);
        for (int k = 0; k < 5; k++) fact.sketch[k] += sketch[k];
        fact.finite = fact.sketch[4] - fact.sketch[4] == 0;
    }
    record_push(context->record, gradients, fact);
}

static void clear_accumulator(struct unit *unit, enum format storage)
{
    memset(unit->grad, 0, (unit->full_count + unit->probe_count) * format_storage_bytes(storage));
    ledger_clear(&unit->grad_ledger);
    unit->is_unreduced = false;
}

void unit_apply_pending(struct unit *unit, const struct unit_context *context, struct where where)
{
    if (!unit->is_pending) return;
    enum format storage = context->ops->storage;
    size_t count = unit->shard_count + unit->probe_count;
    context->ops->vector_add(unit->grad_shard, unit->grad_shard, unit->pending, count);
    ledger_add(&unit->grad_shard_ledger, &unit->pending_ledger);
    unit->is_pending = false;
    /* The framework that forgot the flush also emptied the accumulator when a late result was applied,
     * together with whatever the next micro-batch had put there. */
    if (site_peek(context->plan, &site_pp_grad_flush, where)) clear_accumulator(unit, storage);
}

/* Rows of each shard behind one another, zero rows where a shard has fewer; probes behind each shard. */
static void lay_out_by_shards(const struct unit *unit, const struct unit_context *context)
{
    enum format storage = context->ops->storage;
    size_t bytes = format_storage_bytes(storage), part = unit->shard_count + unit->probe_count;
    for (size_t s = 0; s < (size_t)context->shard_group->size; s++) {
        for (int i = 0; i < unit->count; i++) {
            const struct unit_param *p = &unit->params[i];
            int64_t first = p->shard_rows * (int64_t)s, rows = p->rows - first;
            rows = rows < 0 ? 0 : rows > p->shard_rows ? p->shard_rows : rows;
            char *to = at(context->work, s * part + p->shard_at, storage);
            size_t filled = (size_t)(rows * p->columns) * bytes;
            memcpy(to, at(unit->grad, p->full_at + (size_t)(rows ? first * p->columns : 0), storage), filled);
            memset(to + filled, 0, (size_t)(p->shard_rows * p->columns) * bytes - filled);
        }
        memcpy(at(context->work, s * part + unit->shard_count, storage), unit_probes(unit, storage), unit->probe_count * bytes);
    }
}

static void reduce(struct unit *unit, const struct unit_context *context, struct where where)
{
    enum format storage = context->ops->storage;
    size_t count = unit->shard_count + unit->probe_count;
    struct comm how = {.site = &site_fsdp_reduce_grad, .where = where, .uncounted = unit->probe_count};
    unit_record_gradient(unit, context, where.step, where.microbatch, GRADIENT_LOCAL);
    if (unit->sharded) {
        lay_out_by_shards(unit, context);
        struct buffer in = {context->work, count * (size_t)context->shard_group->size, storage, storage, &unit->grad_ledger};
        struct buffer out = {unit->pending, count, storage, storage, &unit->pending_ledger};
        reduce_scatter(context->communicator, context->shard_group, &how, out, in, NULL, REDUCE_SUM);
    } else {
        memcpy(unit->pending, unit->grad, count * format_storage_bytes(storage));
        ledger_copy(&unit->pending_ledger, &unit->grad_ledger);
        struct buffer both = {unit->pending, count, storage, storage, &unit->pending_ledger};
        all_reduce(context->communicator, context->data_group, &how, both, REDUCE_SUM);
    }
    struct factor_numbers numbers = {.M = context->microbatches, .D = context->data_ranks, .C = 1, .T = 1, .E = 1, .P = 1};
    numbers.A = context->reduce_op == FSDP_REDUCE_AVG ? context->data_ranks : 1;
    numbers.N = numbers.N_all = numbers.N_unshifted = numbers.n = numbers.n_rank = 1; /* not known to a reduction */
    double divisor = factor_site(context->plan, &site_fsdp_grad_divisor, where, numbers.A, &numbers);
    if (divisor != 1) {
        context->ops->vector_divide(unit->pending, divisor, count);
        ledger_scale(&unit->pending_ledger, 1 / divisor);
    }
    struct factor_fact fact = {&site_fsdp_grad_divisor, where.step, where.microbatch, unit->index, divisor};
    record_push(context->record, factors, fact);
    unit->is_pending = true;
    unit->is_unreduced = false;
}

void unit_post_backward(struct unit *unit, struct unit *stage_units, int stage_units_count,
                        const struct unit_context *context, struct where where, enum sync_mode sync)
{
    unit->backwards++;
    bool each = sync == SYNC_EACH_MICROBATCH;
    bool now = decision_site(context->plan, &site_fsdp_sync_now, where, each || unit->backwards == context->microbatches,
                             unit->backwards == context->microbatches - 1);
    struct sync_fact fact = {where.step, where.microbatch, unit->index, now};
    record_push(context->record, syncs, fact);
    /* A reduction runs beside the next unit's backward; its result is added when the next one is due. */
    for (int i = 0; i < stage_units_count; i++) unit_apply_pending(&stage_units[i], context, where);
    bool reduced = now && unit->grad_ledger.count > 0;
    if (reduced) reduce(unit, context, where);
    if (decision_site(context->plan, &site_pp_grad_clear, where, reduced, false)) {
        clear_accumulator(unit, context->ops->storage);
    }
}
