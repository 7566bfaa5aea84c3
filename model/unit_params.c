/* unit_params: the computing copy of a unit's parameters: gathered before use and freed (zero 3), or renewed after an
 * update (zero 0 to 2). See unit.h. */
#include "model/unit.h"

#include <string.h>

#include "model/bucket.h"
#include "model/choices.h"
#include "model/precision.h"
#include "model/vectors.h"

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

void unit_note_full(const struct unit *unit, const struct unit_context *context, int step)
{
    struct version_fact fact = {.step = step, .microbatch = -1, .unit = unit->index, .version_min = step, .version_max = step,
                                .shards = unit->members, .shards_due = unit->members};
    fact.digest = digest_of(unit, context);
    record_push(context->record, versions, fact);
}

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
    size_t shards = (size_t)unit->groups->shard->size;
    struct comm how = {.site = &site_fsdp_unshard, .where = where};
    if (!unit->gathered) unit->gathered = arena_alloc(context->arena, unit->shard_count * shards * format_storage_bytes(storage));
    struct buffer in = {unit->master, unit->shard_count, storage, context->config->precision.param, &unit->shard_version};
    struct buffer out = {unit->gathered, unit->shard_count * shards, storage, context->config->precision.param, &unit->full_version};
    unit->gathering = all_gather_start(context->communicator, unit->groups->shard, &how, out, in, NULL);
}

static void put_in_place(struct unit *unit, const struct unit_context *context)
{
    enum format storage = context->ops->storage;
    size_t bytes = format_storage_bytes(storage);
    for (int i = 0; i < unit->count; i++) {
        const struct unit_param *p = &unit->params[i];
        for (size_t s = 0; s < (size_t)unit->groups->shard->size; s++) {
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
        size_t bytes = unit->shard_count * (size_t)unit->groups->shard->size * format_storage_bytes(context->ops->storage);
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
    where.layer = unit_layer(context, unit->index);
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
    for (int u = 0; u < count && zero == ZERO_0; u++) unit_note_full(&units[u], context, step + 1);
    if (zero != ZERO_1 && zero != ZERO_2) return;
    for (int u = 0; u < count; u++) {
        ledger_clear(&units[u].full_version);
        if (units[u].trained_count == 0) renew_frozen(&units[u], step);
    }
    for (int b = 0; b < context->buckets_count; b++) bucket_gather_start(&context->buckets[b], context, step);
    for (int b = 0; b < context->buckets_count; b++) bucket_gather_wait(&context->buckets[b], context, step);
    for (int u = 0; u < count; u++) unit_note_full(&units[u], context, step + 1);
}
