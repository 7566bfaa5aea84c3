/* bucket_take: what came out of a bucket's reduction, divided and added to its units' reduced gradients. See bucket.h. */
#include "model/bucket.h"

#include <string.h>

#include "model/choices.h"
#include "model/precision.h"
#include "model/vectors.h"

static void note_reduction(const struct bucket *bucket, const struct unit_context *context)
{
    struct reduction_fact fact = {.site = bucket_reduction_site(bucket, context), .step = bucket->where.step, .microbatch = bucket->where.microbatch, .bucket = bucket->index,
                                  .parts = bucket_is_scattered(context) ? bucket->groups->shard->size : 1, .sent = bucket->sent_sketch};
    context->ops->vector_sketch(fact.received, bucket->pending, bucket_own_length(bucket, context));
    fact.bits = vector_bits(bucket->pending, bucket_own_length(bucket, context), unit_storage(context), &fact.values);
    record_push(context->record, reductions, fact);
}

/* Members of an expert-parallel group that read the same sequences each bring the whole dense gradient. */
static int copies_of(const struct bucket *bucket, const struct unit_context *context)
{
    return bucket->is_experts || !bucket_is_scattered(context) ? 1 : layout_shards_alike(&context->config->layout);
}

/* Returns what the accumulated gradient has still to be divided by: 1, unless the divisor acts on all of it. */
static double divide(struct bucket *bucket, const struct unit_context *context, int step)
{
    const struct layout *layout = &context->config->layout;
    struct factor_numbers numbers = {.M = context->microbatches, .D = context->data_ranks, .C = layout_cp(layout), .T = layout->tp, .E = layout_ep(layout), .P = layout->pp,
                                     .D_shard = layout->dp_shard, .D_replicate = layout->dp_replicate};
    numbers.A = layout->reduce_op == FSDP_REDUCE_AVG ? context->data_ranks : 1;
    numbers.N = numbers.N_all = numbers.N_unshifted = numbers.n = numbers.n_rank = 1; /* not known to a reduction */
    const struct site *site = bucket->is_experts ? &site_ep_expert_grad_divisor : &site_fsdp_grad_divisor;
    struct factor_use divisor = factor_use_site(context->plan, site, bucket->where, numbers.A * copies_of(bucket, context), &numbers);
    size_t count = bucket_own_length(bucket, context);
    double after = divisor.value / bucket_predivisor(context);
    if (after != 1 && !divisor.of_accumulated) {
        context->ops->vector_divide(bucket->pending, after, count + bucket->probe_count);
        vector_round(bucket->pending, count, unit_storage(context), context->config->precision.reduce);
        ledger_scale(&bucket->pending_ledger, 1 / after);
    }
    for (int k = 0; k < bucket->pieces_count; k++) {
        struct factor_fact fact = {site, bucket->where.step, bucket->where.microbatch,
                                   bucket->pieces[k].unit->index, divisor.value, step, bucket->pieces[k].piece};
        record_push(context->record, factors, fact);
    }
    return divisor.of_accumulated ? divisor.value : 1;
}

/* Where a piece's own elements lie in what came out. */
static size_t own_in_pending(const struct bucket *bucket, const struct bucket_piece *piece, const struct unit_context *context)
{
    const struct unit_piece *of = &piece->unit->pieces[piece->piece];
    if (piece->unit->sharded) return 0;
    size_t at = piece->at + (of->own_from - of->from);
    return context->config->layout.zero == ZERO_2 ? at - (size_t)bucket->groups->shard->me * bucket->shard_count : at;
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
                                   used.from, used.count, (int64_t)bucket_own_length(bucket, context)};
        record_push(context->record, choices, fact);
    }
}

/* The part of a bucket that this rank takes from its reduction. What is left out at its end is the rank's own; what
 * begins further on moves everything. */
static void take_part(struct bucket *bucket, const struct unit_context *context)
{
    enum format storage = unit_storage(context);
    size_t bytes = format_storage_bytes(storage), length = bucket_own_length(bucket, context);
    struct memory_range used = bucket->taken;
    int64_t from = used.from, cut = from > 0 ? 0 : (int64_t)length - used.count;
    if (used.count == (int64_t)length) {
        note_part(bucket, context, used, used);
        return;
    }
    struct memory_range wrong = from > 0 ? (struct memory_range){0, (int64_t)length} : (struct memory_range){used.count, cut};
    if (from > 0) memmove(bucket->pending, element_at(bucket->pending, (size_t)from, storage), (size_t)used.count * bytes);
    else memcpy(element_at(bucket->pending, (size_t)used.count, storage), element_at(bucket->kept, (size_t)used.count, storage), (size_t)cut * bytes);
    note_part(bucket, context, used, wrong);
}

/* HSDP, a reduction at each micro-batch: sets aside what earlier ones gave, so that it is added after the sum over replicas. */
static void set_aside(struct unit *unit, struct unit_piece *of, int piece, const struct unit_context *context, struct where where)
{
    enum format storage = unit_storage(context);
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
    enum format storage = unit_storage(context);
    const struct bucket_piece *piece = &bucket->pieces[k];
    struct unit *unit = piece->unit;
    struct unit_piece *of = &unit->pieces[piece->piece];
    size_t length = bucket_own_length(bucket, context);
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
    size_t length = (bucket_is_scattered(context) ? bucket->shard_count : bucket->count) + bucket->probe_count;
    communicator_reads(context->communicator, bucket->pending, length * format_storage_bytes(unit_storage(context)),
                       &site_fsdp_grad_divisor, where);
    if (context->watch) note_reduction(bucket, context);
    bucket_look(bucket, context);
    double left = divide(bucket, context, where.step);
    take_part(bucket, context);
    for (int k = 0; k < bucket->pieces_count; k++) take_over(bucket, k, context);
    for (int k = 0; k < bucket->pieces_count; k++) {
        if (bucket->pieces[k].piece == 0) unit_scale_reduced(bucket->pieces[k].unit, context, 1 / left);
    }
    bucket->is_pending = false;
    /* A framework that empties the accumulator when a result is applied loses what the next micro-batch has put there. */
    bool release = decision_site(context->plan, &site_pp_grad_release, where, false, false);
    for (int k = 0; release && k < bucket->pieces_count; k++) {
        struct unit *unit = bucket->pieces[k].unit;
        struct choice_fact fact = {&site_pp_grad_release, where.step, bucket->where.microbatch, unit->index, 0, 1, 0};
        record_push(context->record, choices, fact);
        unit_clear_accumulator(unit, unit_storage(context));
    }
}
