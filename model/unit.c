/* unit: its layout, what of it a rank owns, its arrays, its first values. See unit.h. */
#include "model/unit.h"

#include <string.h>

#include "model/choices.h"
#include "model/deviations.h"
#include "model/params.h"
#include "model/precision.h"
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
                          .params = arena_zalloc(context->arena, (size_t)params_count * sizeof(struct unit_param)),
                          .sharded = context->config->layout.zero == ZERO_3};
    for (int i = 0; i < params_count; i++) {
        struct unit_param *p = &unit->params[i];
        p->param = params[i];
        p->dims = table->params[params[i]].info.dims;
        param_cut_shape(&table->params[params[i]].info, context->config->layout.tp, &p->rows, &p->columns);
        p->info = &table->params[params[i]].info;
        p->adapter = table->params[params[i]].info.is_adapter;
        struct where where = WHERE_NONE;
        where.rank = context->record->rank;
        where.stage = context->record->stage;
        where.layer = unit_layer(context, index);
        where.param = table->params[params[i]].info.name;
        p->frozen = frozen[params[i]] && decision_site(context->plan, &site_fsdp_attributes, where, true, true);
        p->no_decay = train_exempts_from_decay(&context->config->train, p->dims) && decision_site(context->plan, &site_fsdp_no_decay, where, true, true);
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

/* The initial values of one parameter, whole. A stage that seeds its generator by its own number draws others. */
static const void *initial_of(const struct unit *unit, const struct unit_context *context, const struct param_info *info, const void *shared, struct arena *arena)
{
    struct where where = WHERE_NONE;
    enum format storage = context->ops->storage;
    where.rank = context->record->rank;
    where.stage = context->record->stage;
    where.layer = unit_layer(context, unit->index);
    where.param = info->name;
    if (choice_site(context->plan, context->record, &site_init_values, where, unit->index, true)) return shared;
    int64_t columns = info->dims == 2 ? info->shape[1] : 1;
    void *own = arena_alloc(arena, (size_t)(info->shape[0] * columns) * format_storage_bytes(storage));
    struct tensor values = info->dims == 2 ? tensor_2d(own, storage, info->shape[0], columns) : tensor_1d(own, storage, info->shape[0]);
    param_initial(info, &context->config->model, context->config->seed + 1 + (uint64_t)where.stage, values);
    return own;
}

void unit_load(struct unit *unit, const struct unit_context *context, void *const *initial)
{
    const struct precision *precision = &context->config->precision;
    enum format storage = context->ops->storage;
    int tp = context->config->layout.tp, me = context->record->tp;
    struct arena *drawn = arena_new("initial values", false);
    const void **values = arena_alloc(drawn, (size_t)unit->count * sizeof *values);
    for (int i = 0; i < unit->count; i++) values[i] = initial_of(unit, context, unit->params[i].info, initial[unit->params[i].param], drawn);
    for (int k = 0; k < unit->slices_count; k++) {
        const struct slice *slice = &unit->slices[k];
        if (slice->count == 0) continue;
        const struct unit_param *p = &unit->params[slice->i];
        param_cut_copy(element_at(unit->master, slice->at, storage), values[slice->i], storage, p->info, tp, me, slice->first, slice->count);
    }
    vector_round(unit->master, unit->shard_count, storage, precision->master);
    if (unit->sharded) {
        arena_free(drawn);
        return;
    }
    for (int i = 0; i < unit->count; i++) {
        const struct unit_param *p = &unit->params[i];
        param_cut_copy(element_at(unit->full, p->full_at, storage), values[i], storage, p->info, tp, me, 0, p->rows * p->columns);
    }
    arena_free(drawn);
    vector_round(unit->full, unit->full_count, storage, precision->master);
    vector_round(unit->full, unit->full_count, storage, precision->param);
    ledger_clear(&unit->full_version);
    unit_note_full(unit, context, 0);
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
