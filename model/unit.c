/* unit: its layout, what of it a rank owns, its arrays, its first values. See unit.h. */
#include "model/unit.h"

#include <stdio.h>
#include <stdlib.h>
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

static int owner_index(const struct unit *unit, const struct unit_context *context)
{
    return context->config->layout.zero == ZERO_0 ? 0 : unit->groups->shard->me;
}

int unit_find_param(const struct unit *unit, int param)
{
    for (int i = 0; i < unit->count; i++) {
        if (unit->params[i].param == param) return i;
    }
    return -1;
}

bool unit_is_first_copy(const struct unit *unit, const struct unit_context *context)
{
    return context->config->layout.zero != ZERO_0 || unit->groups->shard_index == 0;
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

/* What every tp rank has whole must be known to be. */
static bool is_known_whole(const struct unit_context *context, const struct unit_param *p, struct where where, int unit)
{
    const struct site *site = p->adapter ? &site_tp_adapter_placement : &site_tp_tag;
    return context->config->layout.tp == 1 || choice_site(context->plan, context->record, site, where, unit, true);
}

void unit_init(struct unit *unit, const struct unit_context *context, int index, int part, const int *params,
               int params_count, const struct param_table *table, const bool *frozen)
{
    bool is_experts = unit_is_experts(&context->config->model, index);
    const struct unit_groups *groups = is_experts ? &context->experts : &context->dense;
    int shards = groups->shard->size;
    *unit = (struct unit){.index = index, .part = part, .count = params_count, .is_experts = is_experts, .groups = groups,
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
        p->whole = p->info->cut == CUT_NONE && is_known_whole(context, p, where, index);
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
    int me = owner_index(unit, context);
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
    if (unit->is_experts) unit->arrived_probes = arena_zalloc(context->arena, unit->probe_count * bytes);
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

/* How a parameter is cut over tp: as its description says, or in one piece over keys and values. */
static struct param_info cut_of(const struct unit *unit, const struct unit_context *context, const struct unit_param *p)
{
    struct param_info info = *p->info;
    struct where where = WHERE_NONE;
    where.rank = context->record->rank;
    where.stage = context->record->stage;
    where.layer = unit_layer(context, unit->index);
    where.param = info.name;
    if (context->config->layout.tp == 1 || info.cut != CUT_ROWS || info.sections < 2) return info;
    if (!choice_site(context->plan, context->record, &site_tp_cut_order, where, unit->index, true)) info.sections = 1;
    return info;
}

/* Numbers of experts in the string order of their names: 0, 1, 10, 11, 2, ... */
static int in_string_order(int expert, int experts)
{
    char name[16], other[16];
    for (int e = 0; e < experts; e++) {
        int before = 0;
        snprintf(name, sizeof name, "%d", e);
        for (int k = 0; k < experts; k++) {
            snprintf(other, sizeof other, "%d", k);
            before += strcmp(other, name) < 0;
        }
        if (before == expert) return e;
    }
    return expert;
}

/* Which parameter's initial values a parameter gets: its own. */
static int initial_from(const struct unit *unit, const struct unit_context *context, const struct unit_param *p, struct where where)
{
    int same = 0; /* parameters of this expert */
    if (!p->info->is_expert || decision_site(context->plan, &site_ep_expert_order, where, true, true)) return p->param;
    for (int i = 0; i < unit->count; i++) same += unit->params[i].info->is_expert && unit->params[i].info->expert == p->info->expert;
    return p->param + (in_string_order(p->info->expert, context->config->model.moe.experts) - p->info->expert) * same;
}

/* The whole parameter's initial values on this rank; *ret_own is freed by the caller. */
static const void *initial_values(const struct unit *unit, const struct unit_context *context, const struct unit_param *p, void *const *initial, void **ret_own)
{
    struct where where = WHERE_NONE;
    where.rank = context->record->rank;
    where.stage = context->record->stage;
    where.layer = unit_layer(context, unit->index);
    where.param = p->info->name;
    *ret_own = NULL;
    if (!context->plan) return initial[p->param];
    int from = initial_from(unit, context, p, where);
    bool by_stage = !choice_site(context->plan, context->record, &site_init_values, where, unit->index, true); /* a stage that seeds by its own number */
    bool by_rank = !decision_site(context->plan, &site_model_initial, where, true, true);
    if (!by_stage && !by_rank) return initial[from];
    struct tensor own = p->dims == 1 ? tensor_1d(NULL, context->ops->storage, p->info->shape[0]) : tensor_2d(NULL, context->ops->storage, p->info->shape[0], p->info->shape[1]);
    own.data = *ret_own = memory_alloc((size_t)tensor_bytes(own) + 1);
    uint64_t other = by_stage ? 1 + (uint64_t)where.stage : (uint64_t)where.rank;
    param_initial(p->info, &context->config->model, context->config->seed + other, own);
    return *ret_own;
}

/* All of a rank's parts of one parameter. */
static void load_param(struct unit *unit, const struct unit_context *context, int i, void *const *initial)
{
    enum format storage = context->ops->storage;
    const struct unit_param *p = &unit->params[i];
    int tp = context->config->layout.tp, me = context->record->tp;
    struct param_info info = cut_of(unit, context, p);
    void *own;
    const void *whole = initial_values(unit, context, p, initial, &own);
    for (int k = 0; k < unit->slices_count; k++) {
        const struct slice *slice = &unit->slices[k];
        if (slice->i != i || slice->count == 0) continue;
        param_cut_copy(element_at(unit->master, slice->at, storage), whole, storage, &info, tp, me, slice->first, slice->count);
    }
    if (!unit->sharded) param_cut_copy(element_at(unit->full, p->full_at, storage), whole, storage, &info, tp, me, 0, p->rows * p->columns);
    free(own);
}

void unit_load(struct unit *unit, const struct unit_context *context, void *const *initial)
{
    const struct precision *precision = &context->config->precision;
    enum format storage = context->ops->storage;
    for (int i = 0; i < unit->count; i++) load_param(unit, context, i, initial);
    vector_round(unit->master, unit->shard_count, storage, precision->master);
    if (unit->sharded) return;
    vector_round(unit->full, unit->full_count, storage, precision->master);
    vector_round(unit->full, unit->full_count, storage, precision->param);
    ledger_clear(&unit->full_version);
    unit_note_full(unit, context, 0);
    int shards = context->config->layout.zero == ZERO_0 ? 1 : unit->groups->shard->size;
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
    ledger_done(&unit->arrived_ledger);
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
