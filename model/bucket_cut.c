/* bucket_cut: which elements of a stage's units make up which bucket, and what of them a rank owns (see bucket.h).
 *
 * A stage's trained elements, last unit first, experts that are units of their own after all others, in runs of layout.bucket_elements; a unit that stands alone (bucket_elements
 * 0, zero 3, the tied embedding on two stages) begins and ends a bucket. A run of one unit within one bucket is a piece.
 *     shard_count = ceil(ceil(elements / members) / alignment) * alignment        count = members * shard_count
 * Member s owns elements s * shard_count .. (s + 1) * shard_count - 1 of each bucket. */
#include "model/bucket.h"

#include <stdlib.h>

/* How many members share a bucket's elements between them. */
static int members_of(const struct unit_groups *groups, const struct unit_context *context)
{
    return context->config->layout.zero == ZERO_0 ? 1 : groups->shard->size;
}

struct cut { int bucket; struct unit *unit; size_t from, count, at; };
struct cuts { struct cut *items; int count, capacity, buckets; size_t filled; };

static void cut_add(struct cuts *cuts, struct unit *unit, size_t from, size_t count)
{
    if (cuts->count == cuts->capacity) {
        cuts->capacity = cuts->capacity ? 2 * cuts->capacity : 32;
        cuts->items = memory_realloc(cuts->items, (size_t)cuts->capacity * sizeof *cuts->items);
    }
    cuts->items[cuts->count++] = (struct cut){cuts->buckets, unit, from, count, cuts->filled};
    cuts->filled += count;
}

static void cut_close(struct cuts *cuts)
{
    if (cuts->filled == 0) return;
    cuts->buckets++;
    cuts->filled = 0;
}

static void cut_units(struct cuts *cuts, const struct unit_context *context, struct unit *units, int units_count, bool experts)
{
    const struct run_config *config = context->config;
    size_t limit = context->config->layout.zero == ZERO_3 ? 0 : (size_t)config->layout.bucket_elements;
    bool tied_apart = config->model.tie_embeddings && config->layout.pp > 1;
    for (int u = units_count - 1; u >= 0; u--) {
        struct unit *unit = &units[u];
        if (unit->is_experts != experts) continue;
        bool alone = limit == 0 || (tied_apart && unit->index == 0);
        if (alone) cut_close(cuts);
        for (size_t from = 0; from < unit->trained_count;) {
            size_t room = limit ? limit - cuts->filled : unit->trained_count, left = unit->trained_count - from;
            size_t count = left < room ? left : room;
            cut_add(cuts, unit, from, count);
            from += count;
            if (limit && cuts->filled == limit) cut_close(cuts);
        }
        if (alone) cut_close(cuts);
    }
    cut_close(cuts);
}

static struct cuts cut_stage(const struct unit_context *context, struct unit *units, int units_count)
{
    struct cuts cuts = {0};
    cut_units(&cuts, context, units, units_count, false);
    cut_units(&cuts, context, units, units_count, true);
    return cuts;
}

/* ---- what of a piece this rank owns ---- */

static void own_piece(struct unit *unit, struct unit_piece *piece, const struct bucket *bucket, size_t at,
                      const struct unit_context *context)
{
    int members = members_of(unit->groups, context);
    if (context->config->layout.zero == ZERO_3) {
        piece->own_count = unit->shard_trained_count;
        for (int s = 0; s < members; s++) unit->owners[s] = true;
        return;
    }
    for (int s = 0; s < members; s++) {
        size_t begin = (size_t)s * bucket->shard_count, end = begin + bucket->shard_count;
        size_t from = begin > at ? begin : at, to = end < at + piece->count ? end : at + piece->count;
        if (from >= to) continue;
        unit->owners[s] = true;
        if (members > 1 && s != unit->groups->shard->me) continue;
        piece->own_from = piece->from + (from - at);
        piece->own_count = to - from;
    }
}

static bool piece_has_adapter(const struct unit *unit, const struct unit_piece *piece)
{
    for (int i = 0; i < unit->count; i++) {
        const struct unit_param *p = &unit->params[i];
        size_t end = p->full_at + (size_t)(p->rows * p->columns);
        if (p->adapter && !p->frozen && p->full_at < piece->from + piece->count && end > piece->from) return true;
    }
    return false;
}

static void allocate(struct bucket *bucket, const struct unit_context *context, size_t probes_a_piece)
{
    size_t bytes = format_storage_bytes(unit_storage(context)), shards = (size_t)bucket->groups->shard->size;
    bucket->probe_count = probes_a_piece * (size_t)bucket->pieces_count;
    size_t part = bucket->shard_count + bucket->probe_count;
    if (bucket_is_scattered(context)) {
        bucket->sent = arena_zalloc(context->arena, part * shards * bytes);
        bucket->pending = arena_zalloc(context->arena, part * bytes);
    } else {
        bucket->sent = bucket->pending = arena_zalloc(context->arena, (bucket->count + bucket->probe_count) * bytes);
    }
    if (context->config->layout.zero == ZERO_1 || context->config->layout.zero == ZERO_2)
        bucket->gathered = arena_zalloc(context->arena, bucket->count * bytes);
}

/* The unit whose backward is the last of the bucket's. */
static struct where where_completed(const struct unit_context *context, const struct unit *unit)
{
    struct where where = WHERE_NONE;
    where.rank = context->record->rank;
    where.stage = context->record->stage;
    where.layer = unit_layer(context, unit->index);
    return where;
}

static void fill_bucket(struct bucket *bucket, int index, const struct cuts *cuts, const struct unit_context *context)
{
    size_t align = (size_t)context->config->layout.bucket_alignment, count = 0;
    int pieces = 0;
    const struct unit *any = NULL;
    if (align == 0) align = 1;
    for (int i = 0; i < cuts->count; i++) {
        if (cuts->items[i].bucket != index) continue;
        any = cuts->items[i].unit;
        count += cuts->items[i].count;
        pieces++;
    }
    size_t members = (size_t)members_of(any->groups, context);
    *bucket = (struct bucket){.index = index, .is_experts = any->is_experts, .groups = any->groups, .pieces = arena_zalloc(context->arena, (size_t)pieces * sizeof *bucket->pieces)};
    bucket->shard_count = ((count + members - 1) / members + align - 1) / align * align;
    bucket->count = bucket->shard_count * members;
    for (int i = 0; i < cuts->count; i++) {
        const struct cut *cut = &cuts->items[i];
        if (cut->bucket != index) continue;
        struct unit *unit = cut->unit;
        if (unit->sharded) bucket->count = bucket->shard_count = unit->shard_trained_count;
        bucket->pieces[bucket->pieces_count++] = (struct bucket_piece){unit, unit->pieces_count, cut->at};
        struct unit_piece *piece = &unit->pieces[unit->pieces_count++];
        piece->from = cut->from;
        piece->count = cut->count;
        bucket->has_adapter = bucket->has_adapter || piece_has_adapter(unit, piece);
        own_piece(unit, piece, bucket, cut->at, context);
    }
    bucket->where = where_completed(context, bucket->pieces[bucket->pieces_count - 1].unit);
    allocate(bucket, context, bucket->pieces[0].unit->probe_count);
}

void buckets_make(struct unit_context *context, struct unit *units, int units_count)
{
    struct cuts cuts = cut_stage(context, units, units_count);
    for (int u = 0; u < units_count; u++) {
        struct unit *unit = &units[u];
        int pieces = 0;
        for (int i = 0; i < cuts.count; i++) pieces += cuts.items[i].unit == unit;
        unit->pieces = arena_zalloc(context->arena, (size_t)(pieces + 1) * sizeof *unit->pieces);
        unit->owners = arena_zalloc(context->arena, (size_t)unit->groups->shard->size * sizeof *unit->owners);
    }
    context->buckets = arena_zalloc(context->arena, (size_t)(cuts.buckets + 1) * sizeof *context->buckets);
    context->buckets_count = cuts.buckets;
    for (int b = 0; b < cuts.buckets; b++) fill_bucket(&context->buckets[b], b, &cuts, context);
    free(cuts.items);
    for (int u = 0; u < units_count; u++) {
        struct unit *unit = &units[u];
        if (unit->pieces_count == 0) { /* wholly frozen: nothing of it is reduced; it is all member 0's, or cut as usual */
            unit->pieces_count = 1;
            for (int s = 0; s < unit->groups->shard->size; s++) unit->owners[s] = unit->sharded || s == 0;
        }
        for (int s = 0; s < members_of(unit->groups, context); s++) unit->members += unit->owners[s];
        unit_own(unit, context);
    }
}

void buckets_done(struct bucket *buckets, int count)
{
    for (int b = 0; b < count; b++) {
        ledger_done(&buckets[b].sent_ledger);
        ledger_done(&buckets[b].pending_ledger);
        ledger_done(&buckets[b].own_version);
        ledger_done(&buckets[b].gathered_version);
    }
}
