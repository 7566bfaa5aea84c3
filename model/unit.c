/* unit: see unit.h. Order of a gradient's additions: micro-batches ascending in the accumulator, then
 * members in the order of the collective's algorithm, then (sync at each micro-batch) reductions ascending. */
#include "model/unit.h"

#include <string.h>

#include "model/bucket.h"
#include "model/choices.h"
#include "model/deviations.h"
#include "model/precision.h"
#include "model/vectors.h"
#include "sim/assertion.h"

/* Starts of parameters lie on 64 bytes. */
static size_t padded(int64_t elements)
{
    return (size_t)((elements + 15) / 16 * 16);
}

static int owner_index(const struct unit_context *context)
{
    return context->config->layout.zero == ZERO_0 ? 0 : context->shard_group->me;
}

static int layer_of(const struct unit_context *context, int index)
{
    return index >= 1 && index <= context->config->model.layers ? index - 1 : -1;
}

/* Offsets: the trained parameters first, then the frozen ones. */
static void lay_out(struct unit *unit, bool frozen)
{
    for (int i = 0; i < unit->count; i++) {
        struct unit_param *p = &unit->params[i];
        if (p->frozen != frozen) continue;
        p->full_at = unit->full_count;
        p->shard_at = unit->shard_count;
        unit->full_count += padded(p->rows * p->columns);
        unit->shard_count += unit->sharded ? (size_t)(p->shard_rows * p->columns) : padded(p->rows * p->columns);
    }
}

void unit_init(struct unit *unit, const struct unit_context *context, int index, int part, const int *params,
               int params_count, const struct param_table *table, const bool *frozen)
{
    int shards = context->shard_group->size;
    *unit = (struct unit){.index = index, .part = part, .count = params_count,
                          .sharded = context->config->layout.zero == ZERO_3};
    for (int i = 0; i < params_count; i++) {
        struct unit_param *p = &unit->params[i];
        p->param = params[i];
        p->dims = table->params[params[i]].info.dims;
        p->rows = table->params[params[i]].rows;
        p->columns = table->params[params[i]].columns;
        struct where where = WHERE_NONE;
        where.rank = context->record->rank;
        where.stage = context->record->stage;
        where.layer = layer_of(context, index);
        where.param = table->params[params[i]].info.name;
        p->frozen = frozen[params[i]] && decision_site(context->plan, &site_fsdp_attributes, where, true, true);
        p->shard_rows = (p->rows + shards - 1) / shards;
    }
    lay_out(unit, false);
    unit->trained_count = unit->full_count;
    unit->shard_trained_count = unit->shard_count;
    lay_out(unit, true);
    unit->probe_count = (size_t)(2 * context->data_ranks * context->microbatches);
}

static void add_slice(struct unit *unit, int i, int64_t first, int64_t count, size_t at)
{
    unit->slices[unit->slices_count++] = (struct slice){i, first, count, at};
}

/* Zero 3: the rows of this rank. */
static void own_rows(struct unit *unit, int me)
{
    for (int i = 0; i < unit->count; i++) {
        const struct unit_param *p = &unit->params[i];
        int64_t first = p->shard_rows * me < p->rows ? p->shard_rows * me : p->rows;
        int64_t rows = p->rows - first < p->shard_rows ? p->rows - first : p->shard_rows;
        add_slice(unit, i, first * p->columns, rows * p->columns, p->shard_at);
    }
}

/* Otherwise: what lies in this rank's part of each piece, and frozen parameters whole. */
static void own_parts(struct unit *unit)
{
    unit->shard_count = unit->shard_trained_count = 0;
    for (int k = 0; k < unit->pieces_count; k++) {
        struct unit_piece *piece = &unit->pieces[k];
        piece->own_at = unit->shard_count;
        unit->shard_count += piece->own_count;
        for (int i = 0; i < unit->count; i++) {
            const struct unit_param *p = &unit->params[i];
            size_t start = p->full_at, end = start + (size_t)(p->rows * p->columns);
            size_t from = start > piece->own_from ? start : piece->own_from;
            size_t to = end < piece->own_from + piece->own_count ? end : piece->own_from + piece->own_count;
            if (p->frozen || from >= to) continue;
            add_slice(unit, i, (int64_t)(from - start), (int64_t)(to - from), piece->own_at + (from - piece->own_from));
        }
    }
    unit->shard_trained_count = unit->shard_count;
    for (int i = 0; i < unit->count; i++) {
        struct unit_param *p = &unit->params[i];
        bool any = false;
        for (int k = 0; k < unit->slices_count; k++) any = any || unit->slices[k].i == i;
        if (p->frozen) {
            add_slice(unit, i, 0, p->rows * p->columns, unit->shard_count);
            unit->shard_count += padded(p->rows * p->columns);
        } else if (!any) {
            add_slice(unit, i, 0, 0, 0); /* an empty part has its place in the records too */
        }
    }
}

void unit_own(struct unit *unit, const struct unit_context *context)
{
    enum format storage = context->ops->storage;
    size_t bytes = format_storage_bytes(storage);
    int me = owner_index(context);
    ASSERT(unit->pieces_count >= 1);
    unit->slices = arena_zalloc(context->arena, (size_t)(unit->count * (unit->pieces_count + 1)) * sizeof *unit->slices);
    if (unit->sharded) own_rows(unit, me);
    else own_parts(unit);
    size_t reduced = unit->shard_trained_count + (size_t)unit->pieces_count * unit->probe_count;
    bool apart = unit->sharded || context->config->layout.zero != ZERO_0 ||
                 context->config->precision.param != context->config->precision.master;
    unit->master = arena_zalloc(context->arena, (unit->shard_count + 1) * bytes);
    unit->full = apart ? arena_zalloc(context->arena, unit->full_count * bytes) : unit->master;
    unit->unsharded = !unit->sharded;
    unit->grad = arena_zalloc(context->arena, unit->full_count * bytes);
    unit->grad_probes = arena_zalloc(context->arena, unit->probe_count * bytes);
    unit->reduced = arena_zalloc(context->arena, reduced * bytes);
    if (context->replicate_group->size > 1 && context->config->layout.zero >= ZERO_2)
        unit->partial = arena_zalloc(context->arena, reduced * bytes);
    unit->moment1 = arena_zalloc(context->arena, (unit->shard_trained_count + 1) * bytes);
    unit->moment2 = arena_zalloc(context->arena, (unit->shard_trained_count + 1) * bytes);
    ledger_add_term(&unit->shard_version, (struct origin){0, me, -1, unit->index}, 1, 1);
    struct rank_record *record = context->record;
    record->param_bytes += (int64_t)((unit->sharded ? unit->shard_count : unit->full_count) * bytes);
    record->grad_bytes += (int64_t)((unit->full_count + unit->shard_trained_count) * bytes);
    record->optimizer_bytes += (int64_t)((2 * unit->shard_trained_count + (apart && !unit->sharded ? unit->shard_count : 0)) * bytes);
}

static uint64_t digest_of(const struct unit *unit, const struct unit_context *context)
{
    uint64_t digest = 0;
    for (int i = 0; i < unit->count; i++) {
        const struct unit_param *p = &unit->params[i];
        const void *values = element_at(unit->full, p->full_at, context->ops->storage);
        digest = version_digest(digest, context->ops->vector_checksum(values, (size_t)(p->rows * p->columns)));
    }
    return digest;
}

/* Zero 0 to 2: what the computing copy is when a step begins. */
static void note_full(const struct unit *unit, const struct unit_context *context, int step)
{
    struct version_fact fact = {.step = step, .microbatch = -1, .unit = unit->index, .version_min = step, .version_max = step,
                                .shards = unit->members, .shards_due = unit->members};
    fact.digest = digest_of(unit, context);
    record_push(context->record, versions, fact);
}

void unit_hold_rows(struct unit *unit, const struct unit_context *context, struct where where, const struct param_table *table)
{
    for (int k = 0; unit->sharded && k < unit->slices_count; k++) {
        struct slice *slice = &unit->slices[k];
        const struct unit_param *p = &unit->params[slice->i];
        int64_t rows = slice->count / p->columns;
        if (rows == 0 || rows == p->shard_rows) continue;
        where.param = table->params[p->param].info.name;
        struct memory_range held = memory_site(context->plan, context->record, &site_fsdp_shard, where, unit->index, rows);
        slice->first += held.from * p->columns;
        slice->at += (size_t)(held.from * p->columns);
        slice->count = held.count * p->columns;
    }
}

void unit_load(struct unit *unit, const struct unit_context *context, void *const *initial)
{
    const struct precision *precision = &context->config->precision;
    enum format storage = context->ops->storage;
    size_t bytes = format_storage_bytes(storage);
    for (int k = 0; k < unit->slices_count; k++) {
        const struct slice *slice = &unit->slices[k];
        if (slice->count == 0) continue;
        memcpy(element_at(unit->master, slice->at, storage),
               element_at(initial[unit->params[slice->i].param], (size_t)slice->first, storage), (size_t)slice->count * bytes);
    }
    vector_round(unit->master, unit->shard_count, storage, precision->master);
    if (unit->sharded) return;
    for (int i = 0; i < unit->count; i++) {
        const struct unit_param *p = &unit->params[i];
        memcpy(element_at(unit->full, p->full_at, storage), initial[p->param], (size_t)(p->rows * p->columns) * bytes);
    }
    vector_round(unit->full, unit->full_count, storage, precision->master);
    vector_round(unit->full, unit->full_count, storage, precision->param);
    ledger_clear(&unit->full_version);
    note_full(unit, context, 0);
    int shards = context->config->layout.zero == ZERO_0 ? 1 : context->shard_group->size;
    for (int s = 0; s < shards; s++) {
        if (shards == 1 || unit->owners[s])
            ledger_add_term(&unit->full_version, (struct origin){0, s, -1, unit->index}, 1, 1);
    }
}

void unit_done(struct unit *unit)
{
    ledger_done(&unit->shard_version);
    ledger_done(&unit->full_version);
    ledger_done(&unit->grad_ledger);
    ledger_done(&unit->summed_ledger);
    for (int k = 0; k < unit->pieces_count; k++) {
        ledger_done(&unit->pieces[k].reduced_ledger);
        ledger_done(&unit->pieces[k].partial_ledger);
    }
}

static struct tensor view(const struct unit_param *p, void *data, enum format storage)
{
    void *start = element_at(data, p->full_at, storage);
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

void *unit_reduced_probes(const struct unit *unit, int piece, enum format storage)
{
    return element_at(unit->reduced, unit->shard_trained_count + (size_t)piece * unit->probe_count, storage);
}

/* ---- parameters ---- */

static void note_versions(const struct unit *unit, const struct unit_context *context, struct where where, bool backward,
                          bool gathered)
{
    struct version_fact fact = {.step = where.step, .microbatch = where.microbatch, .unit = unit->index,
                                .backward = backward, .version_min = INT32_MAX, .version_max = INT32_MIN, .shards_due = unit->members};
    for (int i = 0; i < unit->full_version.count; i++) {
        struct origin origin = unit->full_version.terms[i].origin;
        if (origin.step < fact.version_min) fact.shard_min = origin.rank;
        if (origin.step < fact.version_min) fact.version_min = origin.step;
        if (origin.step > fact.version_max) fact.version_max = origin.step;
        if (unit->full_version.terms[i].times == 1 && unit->full_version.terms[i].scale == 1) fact.shards++;
    }
    if (gathered) fact.digest = digest_of(unit, context);
    record_push(context->record, versions, fact);
}

void unit_unshard_start(struct unit *unit, const struct unit_context *context, struct where where)
{
    if (unit->unsharded || unit->gathering) return;
    enum format storage = context->ops->storage;
    size_t shards = (size_t)context->shard_group->size;
    struct comm how = {.site = &site_fsdp_unshard, .where = where};
    if (!unit->gathered) unit->gathered = arena_alloc(context->arena, unit->shard_count * shards * format_storage_bytes(storage));
    struct buffer in = {unit->master, unit->shard_count, storage, context->config->precision.param, &unit->shard_version};
    struct buffer out = {unit->gathered, unit->shard_count * shards, storage, context->config->precision.param, &unit->full_version};
    unit->gathering = all_gather_start(context->communicator, context->shard_group, &how, out, in, NULL);
}

static void put_in_place(struct unit *unit, const struct unit_context *context)
{
    enum format storage = context->ops->storage;
    size_t bytes = format_storage_bytes(storage);
    for (int i = 0; i < unit->count; i++) {
        const struct unit_param *p = &unit->params[i];
        for (size_t s = 0; s < (size_t)context->shard_group->size; s++) {
            int64_t first = p->shard_rows * (int64_t)s, rows = p->rows - first;
            if (rows <= 0) break;
            if (rows > p->shard_rows) rows = p->shard_rows;
            memcpy(element_at(unit->full, p->full_at + (size_t)(first * p->columns), storage),
                   element_at(unit->gathered, s * unit->shard_count + p->shard_at, storage), (size_t)(rows * p->columns) * bytes);
        }
    }
}

void unit_unshard(struct unit *unit, const struct unit_context *context, struct where where, bool backward)
{
    bool gather = !unit->unsharded;
    if (gather) {
        unit_unshard_start(unit, context, where);
        collective_wait(context->communicator, unit->gathering);
        unit->gathering = NULL;
        size_t bytes = unit->shard_count * (size_t)context->shard_group->size * format_storage_bytes(context->ops->storage);
        communicator_reads(context->communicator, unit->gathered, bytes, backward ? &site_layer_backward : &site_layer_forward, where);
        put_in_place(unit, context);
        unit->unsharded = true;
    }
    note_versions(unit, context, where, backward, gather || context->config->layout.zero != ZERO_3);
}

/* Freed parameters must not be read again: one number in each parameter's row becomes NaN, which any use
 * of the whole parameter spreads; filling all of it would cost as much as the gather. */
void unit_reshard(struct unit *unit, enum format storage)
{
    if (!unit->sharded || !unit->unsharded) return;
    for (int i = 0; i < unit->count; i++) {
        const struct unit_param *p = &unit->params[i];
        for (int64_t row = 0; row < p->rows; row++) {
            memory_poison(element_at(unit->full, p->full_at + (size_t)(row * p->columns), storage), format_storage_bytes(storage));
        }
    }
    unit->unsharded = false;
}

/* Zero 0: the computing copy is the master copy, rounded. */
static void copy_master(struct unit *unit, const struct unit_context *context, int step)
{
    enum format storage = context->ops->storage;
    struct where where = WHERE_NONE;
    where.rank = context->record->rank;
    where.stage = context->record->stage;
    where.step = step;
    where.layer = layer_of(context, unit->index);
    for (int i = 0; unit->full != unit->master && i < unit->count; i++) {
        const struct unit_param *p = &unit->params[i];
        struct memory_range copied = memory_site(context->plan, context->record, &site_optimizer_copy, where, unit->index, p->rows * p->columns);
        size_t from = p->full_at + (size_t)copied.from;
        memcpy(element_at(unit->full, from, storage), element_at(unit->master, from, storage), (size_t)copied.count * format_storage_bytes(storage));
        vector_round(element_at(unit->full, from, storage), (size_t)copied.count, storage, context->config->precision.param);
    }
    ledger_copy(&unit->full_version, &unit->shard_version);
}

/* Of a wholly frozen unit nothing is gathered: its copy is what it was, and as good as new. */
static void renew_frozen(struct unit *unit, int step)
{
    ledger_clear(&unit->full_version);
    ledger_add_term(&unit->full_version, (struct origin){step + 1, 0, -1, unit->index}, 1, 1);
}

void unit_refresh(struct unit *units, int count, const struct unit_context *context, int step)
{
    int zero = context->config->layout.zero;
    for (int u = 0; u < count && zero == ZERO_0; u++) copy_master(&units[u], context, step);
    for (int u = 0; u < count && zero == ZERO_0; u++) note_full(&units[u], context, step + 1);
    if (zero != ZERO_1 && zero != ZERO_2) return;
    for (int u = 0; u < count; u++) {
        ledger_clear(&units[u].full_version);
        if (units[u].trained_count == 0) renew_frozen(&units[u], step);
    }
    for (int b = 0; b < context->buckets_count; b++) bucket_gather_start(&context->buckets[b], context, step);
    for (int b = 0; b < context->buckets_count; b++) bucket_gather_wait(&context->buckets[b], context, step);
    for (int u = 0; u < count; u++) note_full(&units[u], context, step + 1);
}

/* ---- gradients ---- */

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
        for (int k = 0; k < 5; k++) fact.sketch[k] += sketch[k];
        fact.finite = fact.sketch[4] - fact.sketch[4] == 0;
    }
    record_push(context->record, gradients, fact);
}
