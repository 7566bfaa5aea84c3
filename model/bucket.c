/* bucket: launching a bucket's reduction and taking its result over. See bucket.h. */
#include "model/bucket.h"

#include <stdlib.h>
#include <string.h>

#include "model/choices.h"
#include "model/precision.h"
#include "model/vectors.h"
#include "sim/assertion.h"

/* ---- launching ---- */

/* Rows of each shard behind one another, zero rows where a shard has fewer; probes behind each shard. */
static void lay_out_by_shards(const struct bucket *bucket, const struct unit_context *context)
{
    enum format storage = unit_storage(context);
    const struct unit *unit = bucket->pieces[0].unit;
    size_t bytes = format_storage_bytes(storage), part = bucket->shard_count + bucket->probe_count;
    for (size_t s = 0; s < (size_t)bucket->groups->shard->size; s++) {
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
    enum format storage = unit_storage(context);
    size_t bytes = format_storage_bytes(storage), gap = bucket_is_scattered(context) ? bucket->probe_count : 0;
    size_t shards = bucket_is_scattered(context) ? (size_t)bucket->groups->shard->size : 1, length = bucket->count / shards;
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

static void reduce_start(struct bucket *bucket, const struct unit_context *context)
{
    enum format storage = unit_storage(context), wire = context->config->precision.reduce;
    struct comm how = {.site = bucket_reduction_site(bucket, context), .where = bucket->where, .uncounted = bucket->probe_count};
    size_t count = bucket->shard_count + bucket->probe_count;
    if (bucket_is_scattered(context)) {
        struct buffer in = {bucket->sent, count * (size_t)bucket->groups->shard->size, storage, wire, &bucket->sent_ledger};
        struct buffer out = {bucket->pending, count, storage, wire, &bucket->pending_ledger};
        bucket->reducing = reduce_scatter_start(context->communicator, bucket->groups->shard, &how, out, in, NULL, REDUCE_SUM);
    } else {
        ledger_copy(&bucket->pending_ledger, &bucket->sent_ledger);
        struct buffer both = {bucket->sent, bucket->count + bucket->probe_count, storage, wire, &bucket->pending_ledger};
        bucket->reducing = all_reduce_start(context->communicator, bucket->groups->data, &how, both, both, REDUCE_SUM);
    }
}

/* What of this rank's own part is not taken from the reduction stays what it was here. */
static void keep_own(struct bucket *bucket, const struct unit_context *context)
{
    int64_t whole = (int64_t)bucket_own_length(bucket, context);
    bucket->taken = memory_range_site(context->plan, &site_dp_bucket, bucket->where, whole);
    if (bucket->taken.count == whole) return;
    size_t bytes = format_storage_bytes(unit_storage(context)), length = bucket_own_length(bucket, context);
    size_t part = bucket_is_scattered(context) ? (length + bucket->probe_count) * (size_t)bucket->groups->shard->me : 0;
    if (!bucket->kept) bucket->kept = arena_alloc(context->arena, length * bytes);
    memcpy(bucket->kept, element_at(bucket->sent, part, unit_storage(context)), length * bytes);
}

/* The buffer's memory is used again for what is gathered: it must be zeros when gradients come back to it. */
static void clear_accumulator(struct unit *unit, const struct unit_context *context, struct where where)
{
    size_t count = unit->trained_count;
    struct memory_range zeroed = {0, (int64_t)count};
    bool is_zeroed = memory_is_zeroed(context->plan, &site_dp_grad_buffer, where);
    if (is_zeroed) zeroed = memory_site(context->plan, context->record, &site_dp_grad_buffer, where, unit->index, (int64_t)count);
    size_t bytes = (size_t)zeroed.from * format_storage_bytes(unit_storage(context));
    void *before = bytes ? memory_alloc(bytes) : NULL;
    if (before) memcpy(before, unit->grad, bytes);
    unit_clear_accumulator(unit, unit_storage(context));
    if (before) memcpy(unit->grad, before, bytes);
    if (!is_zeroed && unit->unsharded) memcpy(unit->grad, unit->full, count * format_storage_bytes(unit_storage(context)));
    free(before);
}

/* Notes what the call is given, and what it gave. */
static void sketch_sent(struct bucket *bucket, const struct unit_context *context)
{
    size_t parts = bucket_is_scattered(context) ? (size_t)bucket->groups->shard->size : 1;
    size_t length = bucket_is_scattered(context) ? bucket->shard_count : bucket->count;
    double *sketch = arena_alloc(context->record->arena, parts * 5 * sizeof *sketch);
    for (size_t i = 0; i < parts; i++)
        context->ops->vector_sketch(sketch + 5 * i, element_at(bucket->sent, i * (length + bucket->probe_count), unit_storage(context)), length);
    bucket->sent_sketch = sketch;
}

double bucket_predivisor(const struct unit_context *context)
{
    int factor = 1, ranks = context->data_ranks;
    if (context->config->precision.reduce != FORMAT_FP16 || context->config->layout.reduce_op != FSDP_REDUCE_AVG) return 1;
    while (ranks % factor == 0 && ranks / factor > factor) factor *= 2;
    return factor;
}

static void divide_before(struct bucket *bucket, const struct unit_context *context)
{
    double divisor = bucket_predivisor(context);
    size_t parts = bucket_is_scattered(context) ? (size_t)bucket->groups->shard->size : 1;
    if (divisor == 1) return;
    context->ops->vector_divide(bucket->sent, divisor, parts * (bucket_own_length(bucket, context) + bucket->probe_count));
    ledger_scale(&bucket->sent_ledger, 1 / divisor);
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
    bucket_look_before(bucket, context);
    if (context->watch) sketch_sent(bucket, context);
    keep_own(bucket, context);
    reduce_start(bucket, context);
    for (int k = 0; k < bucket->pieces_count; k++) {
        struct unit *unit = bucket->pieces[k].unit;
        unit->is_unreduced = false;
        if (++unit->launched < unit->pieces_count) continue;
        struct where at = where;
        at.layer = unit_layer(context, unit->index);
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
    if (!bucket->has_adapter || bucket_is_scattered(context)) return true;
    if (model_uses_adapter(&context->config->model, context->data_rank / layout_cp(&context->config->layout), where.microbatch)) return true;
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
    if (!bucket_is_scattered(context) && !decision_site(context->plan, &site_ddp_hooks, where, true, true)) return;
    bool each = context->config->layout.sync == SYNC_EACH_MICROBATCH;
    bool now = decision_site(context->plan, &site_fsdp_sync_now, where, each || unit->backwards == context->microbatches,
                             unit->backwards == context->microbatches - 1);
    bool asked = now;
    if (!bucket_is_scattered(context)) now = decision_site(context->plan, &site_dp_sync_now, where, asked, unit->backwards == context->microbatches - 1);
    struct sync_fact fact = {where.step, where.microbatch, unit->index, now, asked};
    record_push(context->record, syncs, fact);
    /* FSDP: a reduction runs beside the next unit's backward; its result is added when the next one is due. */
    for (int b = 0; bucket_is_scattered(context) && b < context->buckets_count; b++) bucket_apply(&context->buckets[b], context, where);
    unit->sync_now = now && unit->grad_ledger.count > 0;
    unit->ready_microbatch = where.microbatch;
    unit->launched = 0;
    for (int b = 0; unit->sync_now && b < context->buckets_count; b++) {
        struct bucket *bucket = &context->buckets[b];
        if (holds(bucket, unit) && is_complete(bucket, where.microbatch) && is_ready(bucket, context, where)) launch(bucket, context, where);
    }
    if (!unit->sync_now && decision_site(context->plan, &site_pp_grad_clear, where, false, false)) {
        unit_clear_accumulator(unit, unit_storage(context));
    }
}
