/* bucket: see bucket.h. */
#include "model/bucket.h"

#include <stdlib.h>
#include <string.h>

#include "model/choices.h"
#include "model/precision.h"
#include "model/vectors.h"
#include "sim/assertion.h"

static enum format storage_of(const struct unit_context *context)
{
    return context->ops->storage;
}

static int zero_of(const struct unit_context *context)
{
    return context->config->layout.zero;
}

/* How many members share a bucket's elements between them. */
static int members_of(const struct unit_context *context)
{
    return zero_of(context) == ZERO_0 ? 1 : context->shard_group->size;
}

static bool is_scattered(const struct unit_context *context)
{
    return zero_of(context) >= ZERO_2;
}

/* ---- cutting ---- */

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

static struct cuts cut_stage(const struct unit_context *context, struct unit *units, int units_count)
{
    const struct run_config *config = context->config;
    size_t limit = zero_of(context) == ZERO_3 ? 0 : (size_t)config->layout.bucket_elements;
    bool tied_apart = config->model.tie_embeddings && config->layout.pp > 1;
    struct cuts cuts = {0};
    for (int u = units_count - 1; u >= 0; u--) {
        struct unit *unit = &units[u];
        bool alone = limit == 0 || (tied_apart && unit->index == 0);
        if (alone) cut_close(&cuts);
        for (size_t from = 0; from < unit->trained_count;) {
            size_t room = limit ? limit - cuts.filled : unit->trained_count, left = unit->trained_count - from;
            size_t count = left < room ? left : room;
            cut_add(&cuts, unit, from, count);
            from += count;
            if (limit && cuts.filled == limit) cut_close(&cuts);
        }
        if (alone) cut_close(&cuts);
    }
    cut_close(&cuts);
    return cuts;
}

/* ---- what of a piece this rank owns ---- */

static void own_piece(struct unit *unit, struct unit_piece *piece, const struct bucket *bucket, size_t at,
                      const struct unit_context *context)
{
    int members = members_of(context);
    if (zero_of(context) == ZERO_3) {
        piece->own_count = unit->shard_trained_count;
        for (int s = 0; s < members; s++) unit->owners[s] = true;
        return;
    }
    for (int s = 0; s < members; s++) {
        size_t begin = (size_t)s * bucket->shard_count, end = begin + bucket->shard_count;
        size_t from = begin > at ? begin : at, to = end < at + piece->count ? end : at + piece->count;
        if (from >= to) continue;
        unit->owners[s] = true;
        if (members > 1 && s != context->shard_group->me) continue;
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
    size_t bytes = format_storage_bytes(storage_of(context)), shards = (size_t)context->shard_group->size;
    bucket->probe_count = probes_a_piece * (size_t)bucket->pieces_count;
    size_t part = bucket->shard_count + bucket->probe_count;
    if (is_scattered(context)) {
        bucket->sent = arena_zalloc(context->arena, part * shards * bytes);
        bucket->pending = arena_zalloc(context->arena, part * bytes);
    } else {
        bucket->sent = bucket->pending = arena_zalloc(context->arena, (bucket->count + bucket->probe_count) * bytes);
    }
    if (zero_of(context) == ZERO_1 || zero_of(context) == ZERO_2)
        bucket->gathered = arena_zalloc(context->arena, bucket->count * bytes);
}

static void fill_bucket(struct bucket *bucket, int index, const struct cuts *cuts, const struct unit_context *context)
{
    size_t members = (size_t)members_of(context), align = (size_t)context->config->layout.bucket_alignment, count = 0;
    int pieces = 0;
    if (align == 0) align = 1;
    for (int i = 0; i < cuts->count; i++) {
        if (cuts->items[i].bucket != index) continue;
        count += cuts->items[i].count;
        pieces++;
    }
    *bucket = (struct bucket){.index = index, .pieces = arena_zalloc(context->arena, (size_t)pieces * sizeof *bucket->pieces)};
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
        unit->owners = arena_zalloc(context->arena, (size_t)context->shard_group->size * sizeof *unit->owners);
    }
    context->buckets = arena_zalloc(context->arena, (size_t)(cuts.buckets + 1) * sizeof *context->buckets);
    context->buckets_count = cuts.buckets;
    for (int b = 0; b < cuts.buckets; b++) fill_bucket(&context->buckets[b], b, &cuts, context);
    free(cuts.items);
    for (int u = 0; u < units_count; u++) {
        struct unit *unit = &units[u];
        if (unit->pieces_count == 0) { /* wholly frozen: nothing of it is reduced; it is all member 0's, or cut as usual */
            unit->pieces_count = 1;
            for (int s = 0; s < context->shard_group->size; s++) unit->owners[s] = unit->sharded || s == 0;
        }
        for (int s = 0; s < members_of(context); s++) unit->members += unit->owners[s];
        unit_own(unit, context);
    }
}

void buckets_done(struct bucket *buckets, int count)
{
    for (int b = 0; b < count; b++) {
        ledger_done(&buckets[b].sent_ledger);
        ledger_done(&buckets[b].pending_ledger);
    }
}

size_t bucket_elements(const struct bucket *bucket)
{
    return bucket->count;
}

/* ---- launching ---- */

/* Rows of each shard behind one another, zero rows where a shard has fewer; probes behind each shard. */
static void lay_out_by_shards(const struct bucket *bucket, const struct unit_context *context)
{
    enum format storage = storage_of(context);
    const struct unit *unit = bucket->pieces[0].unit;
    size_t bytes = format_storage_bytes(storage), part = bucket->shard_count + bucket->probe_count;
    for (size_t s = 0; s < (size_t)context->shard_group->size; s++) {
        for (int i = 0; i < unit->count; i++) {
            const struct unit_param *p = &unit->params[i];
            if (p->frozen) continue;
            int64_t first = p->shard_rows * (int64_t)s, rows = p->rows - first;
            rows = rows < 0 ? 0 : rows > p->shard_rows ? p->shard_rows : rows;
            char *to = element_at(bucket->sent, s * part + p->shard_at, storage);
            size_t filled = (size_t)(rows * p->columns) * bytes;
            memcpy(to, element_at(unit->grad, p->full_at + (size_t)(rows ? first * p->columns : 0), storage), filled);
            memset(to + filled, 0, (size_t)(p->shard_rows * p->columns) * bytes - filled);
        }
        memcpy(element_at(bucket->sent, s * part + bucket->shard_count, storage), unit->grad_probes, unit->probe_count * bytes);
    }
}

/* Zero 2: a part a member, each with the probes behind; else the bucket as it is with the probes behind. */
static void lay_out_flat(const struct bucket *bucket, const struct unit_context *context)
{
    enum format storage = storage_of(context);
    size_t bytes = format_storage_bytes(storage), gap = is_scattered(context) ? bucket->probe_count : 0;
    size_t shards = is_scattered(context) ? (size_t)context->shard_group->size : 1, length = bucket->count / shards;
    for (size_t s = 0; s < shards; s++) {
        char *part = element_at(bucket->sent, s * (length + gap), storage);
        memset(part, 0, length * bytes); /* the padding */
        for (int k = 0; k < bucket->pieces_count; k++) {
            const struct bucket_piece *piece = &bucket->pieces[k];
            const struct unit_piece *of = &piece->unit->pieces[piece->piece];
            size_t begin = s * length, end = begin + length;
            size_t from = begin > piece->at ? begin : piece->at, to = end < piece->at + of->count ? end : piece->at + of->count;
            if (from < to) {
                memcpy(element_at(part, from - begin, storage),
                       element_at(piece->unit->grad, of->from + (from - piece->at), storage), (to - from) * bytes);
            }
            size_t probes = piece->unit->probe_count;
            memcpy(element_at(part, length + (size_t)k * probes, storage), piece->unit->grad_probes, probes * bytes);
        }
    }
}

static void sum_ledgers(struct bucket *bucket)
{
    ledger_clear(&bucket->sent_ledger);
    for (int k = 0; k < bucket->pieces_count; k++) {
        const struct ledger *ledger = &bucket->pieces[k].unit->grad_ledger;
        for (int i = 0; i < ledger->count; i++) {
            struct origin origin = ledger->terms[i].origin;
            origin.part += 2 * k;
            ledger_add_term(&bucket->sent_ledger, origin, ledger->terms[i].times, ledger->terms[i].scale);
        }
    }
}

static const struct site *reduction_site(const struct unit_context *context)
{
    return is_scattered(context) ? &site_fsdp_reduce_grad : &site_dp_all_reduce_grad;
}

static void reduce_start(struct bucket *bucket, const struct unit_context *context)
{
    enum format storage = storage_of(context), wire = context->config->precision.reduce;
    struct comm how = {.site = reduction_site(context), .where = bucket->where, .uncounted = bucket->probe_count};
    size_t count = bucket->shard_count + bucket->probe_count;
    if (is_scattered(context)) {
        struct buffer in = {bucket->sent, count * (size_t)context->shard_group->size, storage, wire, &bucket->sent_ledger};
        struct buffer out = {bucket->pending, count, storage, wire, &bucket->pending_ledger};
        bucket->reducing = reduce_scatter_start(context->communicator, context->shard_group, &how, out, in, NULL, REDUCE_SUM);
    } else {
        ledger_copy(&bucket->pending_ledger, &bucket->sent_ledger);
        struct buffer both = {bucket->sent, bucket->count + bucket->probe_count, storage, wire, &bucket->pending_ledger};
        bucket->reducing = all_reduce_start(context->communicator, context->data_group, &how, both, both, REDUCE_SUM);
    }
}

static size_t own_length(const struct bucket *bucket, const struct unit_context *context)
{
    return is_scattered(context) ? bucket->shard_count : bucket->count;
}

/* What of this rank's own part does not come out of the reduction stays what it was here. */
static void keep_own(struct bucket *bucket, const struct unit_context *context)
{
    if (!context->plan || !site_peek(context->plan, &site_dp_bucket, bucket->where)) return;
    size_t bytes = format_storage_bytes(storage_of(context)), length = own_length(bucket, context);
    size_t part = is_scattered(context) ? (length + bucket->probe_count) * (size_t)context->shard_group->me : 0;
    if (!bucket->kept) bucket->kept = arena_alloc(context->arena, length * bytes);
    memcpy(bucket->kept, element_at(bucket->sent, part, storage_of(context)), length * bytes);
}

/* The buffer's memory is used again for what is gathered: it must be zeros when gradients come back to it. */
static void clear_accumulator(struct unit *unit, const struct unit_context *context, struct where where)
{
    size_t count = unit->trained_count;
    struct memory_range zeroed = {0, (int64_t)count};
    bool is_zeroed = memory_is_zeroed(context->plan, &site_dp_grad_buffer, where);
    if (is_zeroed) zeroed = memory_site(context->plan, context->record, &site_dp_grad_buffer, where, unit->index, (int64_t)count);
    size_t bytes = (size_t)zeroed.from * format_storage_bytes(storage_of(context));
    void *before = bytes ? memory_alloc(bytes) : NULL;
    if (before) memcpy(before, unit->grad, bytes);
    unit_clear_accumulator(unit, storage_of(context));
    if (before) memcpy(unit->grad, before, bytes);
    if (!is_zeroed && unit->unsharded) memcpy(unit->grad, unit->full, count * format_storage_bytes(storage_of(context)));
    free(before);
}

/* Notes what the call is given, and what it gave. */
static void sketch_sent(struct bucket *bucket, const struct unit_context *context)
{
    size_t parts = is_scattered(context) ? (size_t)context->shard_group->size : 1;
    size_t length = is_scattered(context) ? bucket->shard_count : bucket->count;
    double *sketch = arena_alloc(context->record->arena, parts * 5 * sizeof *sketch);
    for (size_t i = 0; i < parts; i++)
        context->ops->vector_sketch(sketch + 5 * i, element_at(bucket->sent, i * (length + bucket->probe_count), storage_of(context)), length);
    bucket->sent_sketch = sketch;
}

static void note_reduction(const struct bucket *bucket, const struct unit_context *context)
{
    struct reduction_fact fact = {.step = bucket->where.step, .microbatch = bucket->where.microbatch, .bucket = bucket->index,
                                  .parts = is_scattered(context) ? context->shard_group->size : 1, .sent = bucket->sent_sketch};
    context->ops->vector_sketch(fact.received, bucket->pending, own_length(bucket, context));
    fact.bits = vector_bits(bucket->pending, own_length(bucket, context), storage_of(context), &fact.values);
    record_push(context->record, reductions, fact);
}

/* A sum in fp16 may overflow where its mean would not: as FSDP, part of the division comes before the reduction, the
 * power of two next to the root of the ranks. 1: all of it after. */
static double predivisor(const struct unit_context *context)
{
    int factor = 1, ranks = context->data_ranks;
    if (context->config->precision.reduce != FORMAT_FP16 || context->config->layout.reduce_op != FSDP_REDUCE_AVG) return 1;
    while (ranks % factor == 0 && ranks / factor > factor) factor *= 2;
    return factor;
}

static void divide_before(struct bucket *bucket, const struct unit_context *context)
{
    double divisor = predivisor(context);
    size_t parts = is_scattered(context) ? (size_t)context->shard_group->size : 1;
    if (divisor == 1) return;
    context->ops->vector_divide(bucket->sent, divisor, parts * (own_length(bucket, context) + bucket->probe_count));
    ledger_scale(&bucket->sent_ledger, 1 / divisor);
}

/* The look is due before the reduction: behind it every member has what one of them brought. */
static bool is_finite(const struct unit_context *context, const void *values, size_t count)
{
    double squares = context->ops->vector_sum_squares(values, count);
    return squares - squares == 0;
}

static void look_before(struct bucket *bucket, const struct unit_context *context)
{
    size_t parts = is_scattered(context) ? (size_t)context->shard_group->size : 1;
    if (!context->config->train.check_finite) return;
    bucket->sent_finite = is_finite(context, bucket->sent, parts * (own_length(bucket, context) + bucket->probe_count));
}

static void look(const struct bucket *bucket, const struct unit_context *context)
{
    if (!context->config->train.check_finite) return;
    bool before = decision_site(context->plan, &site_dp_finite_check, bucket->where, true, true);
    struct finite_fact fact = {.step = bucket->where.step, .microbatch = bucket->where.microbatch, .unit = bucket->pieces[0].unit->index,
                               .was = bucket->sent_finite};
    fact.said = before ? fact.was : is_finite(context, bucket->pending, own_length(bucket, context));
    record_push(context->record, finites, fact);
}

static void launch(struct bucket *bucket, const struct unit_context *context, struct where where)
{
    bucket_apply(bucket, context, where);
    for (int k = 0; k < bucket->pieces_count; k++) {
        if (bucket->pieces[k].piece == 0) {
            unit_record_gradient(bucket->pieces[k].unit, context, where.step, where.microbatch, GRADIENT_LOCAL, where.layer);
        }
    }
    if (bucket->pieces[0].unit->sharded) lay_out_by_shards(bucket, context);
    else lay_out_flat(bucket, context);
    sum_ledgers(bucket);
    divide_before(bucket, context);
    bucket->where = where;
    bucket->is_pending = true;
    look_before(bucket, context);
    if (context->watch) sketch_sent(bucket, context);
    keep_own(bucket, context);
    reduce_start(bucket, context);
    for (int k = 0; k < bucket->pieces_count; k++) {
        struct unit *unit = bucket->pieces[k].unit;
        unit->is_unreduced = false;
        if (++unit->launched < unit->pieces_count) continue;
        struct where at = where;
        at.layer = unit->index >= 1 && unit->index <= context->config->model.layers ? unit->index - 1 : -1;
        bool clear = decision_site(context->plan, &site_pp_grad_clear, at, true, false);
        bool reset = choice_site(context->plan, context->record, &site_dp_grad_reset, at, unit->index, true);
        if (clear && reset) clear_accumulator(unit, context, at);
    }
}

static bool is_complete(const struct bucket *bucket, int microbatch)
{
    for (int k = 0; k < bucket->pieces_count; k++) {
        const struct unit *unit = bucket->pieces[k].unit;
        if (!unit->sync_now || unit->ready_microbatch != microbatch) return false;
    }
    return true;
}

/* No hook runs for a parameter that nothing used: the graph is searched for such ones and their part of the bucket counts
 * as there (find_unused_parameters), or the bucket waits for ever. */
static bool is_ready(const struct bucket *bucket, const struct unit_context *context, struct where where)
{
    if (!bucket->has_adapter || is_scattered(context)) return true;
    if (model_uses_adapter(&context->config->model, context->data_rank, where.microbatch)) return true;
    bool ready = decision_site(context->plan, &site_ddp_ready, where, true, true);
    for (int k = 0; k < bucket->pieces_count; k++) {
        struct choice_fact fact = {&site_ddp_ready, where.step, where.microbatch, bucket->pieces[k].unit->index, 0, ready, 1};
        record_push(context->record, choices, fact);
    }
    return ready;
}

static bool holds(const struct bucket *bucket, const struct unit *unit)
{
    for (int k = 0; k < bucket->pieces_count; k++) {
        if (bucket->pieces[k].unit == unit) return true;
    }
    return false;
}

void bucket_backward_done(struct unit *unit, const struct unit_context *context, struct where where)
{
    unit->backwards++;
    if (!is_scattered(context) && !decision_site(context->plan, &site_ddp_hooks, where, true, true)) return;
    bool each = context->config->layout.sync == SYNC_EACH_MICROBATCH;
    bool now = decision_site(context->plan, &site_fsdp_sync_now, where, each || unit->backwards == context->microbatches,
                             unit->backwards == context->microbatches - 1);
    bool asked = now;
    if (!is_scattered(context)) now = decision_site(context->plan, &site_dp_sync_now, where, asked, unit->backwards == context->microbatches - 1);
    struct sync_fact fact = {where.step, where.microbatch, unit->index, now, asked};
    record_push(context->record, syncs, fact);
    /* FSDP: a reduction runs beside the next unit's backward; its result is added when the next one is due. */
    for (int b = 0; is_scattered(context) && b < context->buckets_count; b++) bucket_apply(&context->buckets[b], context, where);
    unit->sync_now = now && unit->grad_ledger.count > 0;
    unit->ready_microbatch = where.microbatch;
    unit->launched = 0;
    for (int b = 0; unit->sync_now && b < context->buckets_count; b++) {
        struct bucket *bucket = &context->buckets[b];
        if (holds(bucket, unit) && is_complete(bucket, where.microbatch) && is_ready(bucket, context, where)) launch(bucket, context, where);
    }
    if (!unit->sync_now && decision_site(context->plan, &site_pp_grad_clear, where, false, false)) {
        unit_clear_accumulator(unit, storage_of(context));
    }
}

/* ---- taking over ---- */

/* A reduction in place: what it does to a micro-batch's gradient, it does to all that was accumulated before. */
static bool is_in_place(const struct bucket *bucket, const struct unit_context *context)
{
    const struct armed *armed = site_peek(context->plan, &site_fsdp_grad_divisor, bucket->where);
    return armed && !strcmp(armed->deviation->name, "per-accumulation-step");
}

/* Returns what the accumulated gradient has still to be divided by: 1, unless the reduction is in place. */
static double divide(struct bucket *bucket, const struct unit_context *context, int step)
{
    bool in_place = is_in_place(bucket, context);
    const struct layout *layout = &context->config->layout;
    struct factor_numbers numbers = {.M = context->microbatches, .D = context->data_ranks, .C = 1, .T = 1, .E = 1, .P = layout->pp,
                                     .D_shard = layout->dp_shard, .D_replicate = layout->dp_replicate};
    numbers.A = layout->reduce_op == FSDP_REDUCE_AVG ? context->data_ranks : 1;
    numbers.N = numbers.N_all = numbers.N_unshifted = numbers.n = numbers.n_rank = 1; /* not known to a reduction */
    double divisor = factor_site(context->plan, &site_fsdp_grad_divisor, bucket->where, numbers.A, &numbers);
    size_t count = (is_scattered(context) ? bucket->shard_count : bucket->count);
    double after = divisor / predivisor(context);
    if (after != 1 && !in_place) {
        context->ops->vector_divide(bucket->pending, after, count + bucket->probe_count);
        vector_round(bucket->pending, count, storage_of(context), context->config->precision.reduce);
        ledger_scale(&bucket->pending_ledger, 1 / after);
    }
    for (int k = 0; k < bucket->pieces_count; k++) {
        if (bucket->pieces[k].piece > 0) continue;
        struct factor_fact fact = {&site_fsdp_grad_divisor, bucket->where.step, bucket->where.microbatch,
                                   bucket->pieces[k].unit->index, divisor, step};
        record_push(context->record, factors, fact);
    }
    return in_place ? divisor : 1;
}

/* Where a piece's own elements lie in what came out. */
static size_t own_in_pending(const struct bucket *bucket, const struct bucket_piece *piece, const struct unit_context *context)
{
    const struct unit_piece *of = &piece->unit->pieces[piece->piece];
    if (piece->unit->sharded) return 0;
    size_t at = piece->at + (of->own_from - of->from);
    return zero_of(context) == ZERO_2 ? at - (size_t)context->shard_group->me * bucket->shard_count : at;
}

static bool overlaps(const struct bucket *bucket, const struct bucket_piece *piece, const struct unit_context *context,
                     struct memory_range out)
{
    const struct unit_piece *of = &piece->unit->pieces[piece->piece];
    int64_t from = (int64_t)own_in_pending(bucket, piece, context);
    return of->own_count > 0 && from < out.from + out.count && out.from < from + (int64_t)of->own_count;
}

/* Which elements of the bucket were taken, for the units that have a piece in `concerned`. */
static void note_part(const struct bucket *bucket, const struct unit_context *context, struct memory_range used,
                      struct memory_range concerned)
{
    for (int k = 0; k < bucket->pieces_count; k++) {
        if (!overlaps(bucket, &bucket->pieces[k], context, concerned)) continue;
        struct choice_fact fact = {&site_dp_bucket, bucket->where.step, bucket->where.microbatch, bucket->pieces[k].unit->index,
                                   used.from, used.count, (int64_t)own_length(bucket, context)};
        record_push(context->record, choices, fact);
    }
}

/* The part of a bucket that this rank takes from its reduction. What is left out at its end is the rank's own; what
 * begins further on moves everything. */
static void take_part(struct bucket *bucket, const struct unit_context *context)
{
    enum format storage = storage_of(context);
    size_t bytes = format_storage_bytes(storage), length = own_length(bucket, context);
    if (!bucket->kept || !site_peek(context->plan, &site_dp_bucket, bucket->where)) {
        note_part(bucket, context, (struct memory_range){0, (int64_t)length}, (struct memory_range){0, (int64_t)length});
        return;
    }
    int64_t from, cut = memory_site_cut(context->plan, &site_dp_bucket, bucket->where, &from);
    if (cut > (int64_t)length) cut = (int64_t)length;
    if (from > (int64_t)length) from = (int64_t)length;
    struct memory_range used = {from, (int64_t)length - (from > 0 ? from : cut)};
    struct memory_range wrong = from > 0 ? (struct memory_range){0, (int64_t)length} : (struct memory_range){used.count, cut};
    if (from > 0) memmove(bucket->pending, element_at(bucket->pending, (size_t)from, storage), (size_t)used.count * bytes);
    else memcpy(element_at(bucket->pending, (size_t)used.count, storage), element_at(bucket->kept, (size_t)used.count, storage), (size_t)cut * bytes);
    note_part(bucket, context, used, wrong);
}

/* HSDP, a reduction at each micro-batch: sets aside what earlier ones gave, so that it is added after the sum over replicas. */
static void set_aside(struct unit *unit, struct unit_piece *of, int piece, const struct unit_context *context, struct where where)
{
    enum format storage = storage_of(context);
    size_t bytes = format_storage_bytes(storage), probes_at = unit->shard_trained_count + (size_t)piece * unit->probe_count;
    if (!unit->partial || choice_site(context->plan, context->record, &site_hsdp_accumulate, where, unit->index, true)) return;
    const struct { size_t at, count; } parts[2] = {{of->own_at, of->own_count}, {probes_at, unit->probe_count}};
    for (int i = 0; i < 2; i++) {
        char *from = element_at(unit->reduced, parts[i].at, storage), *to = element_at(unit->partial, parts[i].at, storage);
        context->ops->vector_add(to, to, from, parts[i].count);
        memset(from, 0, parts[i].count * bytes);
    }
    ledger_add(&of->partial_ledger, &of->reduced_ledger);
    ledger_clear(&of->reduced_ledger);
}

static void take_over(struct bucket *bucket, int k, const struct unit_context *context)
{
    enum format storage = storage_of(context);
    const struct bucket_piece *piece = &bucket->pieces[k];
    struct unit *unit = piece->unit;
    struct unit_piece *of = &unit->pieces[piece->piece];
    size_t length = own_length(bucket, context);
    set_aside(unit, of, piece->piece, context, bucket->where);
    if (of->own_count > 0) {
        char *to = element_at(unit->reduced, of->own_at, storage);
        context->ops->vector_add(to, to, element_at(bucket->pending, own_in_pending(bucket, piece, context), storage), of->own_count);
        vector_round(to, of->own_count, storage, context->config->precision.accumulate);
    }
    void *probes = unit_reduced_probes(unit, piece->piece, storage);
    context->ops->vector_add(probes, probes, element_at(bucket->pending, length + (size_t)k * unit->probe_count, storage), unit->probe_count);
    for (int i = 0; i < bucket->pending_ledger.count; i++) {
        struct ledger_term term = bucket->pending_ledger.terms[i];
        if (term.origin.part / 2 != k) continue;
        term.origin.part %= 2;
        ledger_add_term(&of->reduced_ledger, term.origin, term.times, term.scale);
    }
}

void bucket_apply(struct bucket *bucket, const struct unit_context *context, struct where where)
{
    if (!bucket->is_pending) return;
    collective_wait(context->communicator, bucket->reducing);
    bucket->reducing = NULL;
    size_t length = (is_scattered(context) ? bucket->shard_count : bucket->count) + bucket->probe_count;
    communicator_reads(context->communicator, bucket->pending, length * format_storage_bytes(storage_of(context)),
                       &site_fsdp_grad_divisor, where);
    if (context->watch) note_reduction(bucket, context);
    look(bucket, context);
    double left = divide(bucket, context, where.step);
    take_part(bucket, context);
    for (int k = 0; k < bucket->pieces_count; k++) take_over(bucket, k, context);
    for (int k = 0; k < bucket->pieces_count; k++) {
        if (bucket->pieces[k].piece == 0) unit_scale_reduced(bucket->pieces[k].unit, context, 1 / left);
    }
    bucket->is_pending = false;
    /* A framework that empties the accumulator when a result is applied loses what the next micro-batch has put there. */
    if (!decision_site(context->plan, &site_pp_grad_release, where, false, false)) return;
    for (int k = 0; k < bucket->pieces_count; k++) unit_clear_accumulator(bucket->pieces[k].unit, storage_of(context));
}

/* ---- updated parameters, zero 1 and 2 ---- */

static void note_gathered(struct unit *unit, const struct ledger *versions)
{
    for (int i = 0; i < versions->count; i++) {
        const struct ledger_term *term = &versions->terms[i];
        if (term->origin.part == unit->index && !ledger_find(&unit->full_version, term->origin))
            ledger_add_term(&unit->full_version, term->origin, term->times, term->scale);
    }
}

void bucket_gather(struct bucket *bucket, const struct unit_context *context, int step)
{
    enum format storage = storage_of(context), wire = context->config->precision.param;
    size_t bytes = format_storage_bytes(storage), begin = (size_t)context->shard_group->me * bucket->shard_count;
    struct comm how = {.site = &site_fsdp_unshard, .where = bucket->where};
    how.where.step = step;
    how.where.microbatch = -1;
    char *own = element_at(bucket->gathered, begin, storage);
    ledger_clear(&bucket->sent_ledger);
    memset(own, 0, bucket->shard_count * bytes);
    for (int k = 0; k < bucket->pieces_count; k++) {
        const struct bucket_piece *piece = &bucket->pieces[k];
        const struct unit_piece *of = &piece->unit->pieces[piece->piece];
        if (of->own_count == 0) continue;
        memcpy(element_at(own, piece->at + (of->own_from - of->from) - begin, storage),
               element_at(piece->unit->master, of->own_at, storage), of->own_count * bytes);
        for (int i = 0; i < piece->unit->shard_version.count; i++) {
            const struct ledger_term *term = &piece->unit->shard_version.terms[i];
            if (!ledger_find(&bucket->sent_ledger, term->origin))
                ledger_add_term(&bucket->sent_ledger, term->origin, term->times, term->scale);
        }
    }
    struct buffer in = {own, bucket->shard_count, storage, wire, &bucket->sent_ledger};
    struct buffer out = {bucket->gathered, bucket->count, storage, wire, &bucket->pending_ledger};
    all_gather(context->communicator, context->shard_group, &how, out, in, NULL);
    for (int k = 0; k < bucket->pieces_count; k++) {
        const struct bucket_piece *piece = &bucket->pieces[k];
        const struct unit_piece *of = &piece->unit->pieces[piece->piece];
        memcpy(element_at(piece->unit->full, of->from, storage), element_at(bucket->gathered, piece->at, storage), of->count * bytes);
        note_gathered(piece->unit, &bucket->pending_ledger);
    }
}
