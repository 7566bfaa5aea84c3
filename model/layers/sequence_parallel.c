/* sequence_parallel: see sequence_parallel.h. */
#include "model/layers/sequence_parallel.h"

#include <string.h>

#include "model/layers/tensor_parallel.h"
#include "model/precision.h"
#include "model/record.h"
#include "model/vectors.h"

/* Between [batch, tp, seq / tp] and [tp, batch, seq / tp] rows. */
static void reorder(const struct layer_context *context, struct tensor by_member, struct tensor by_sequence, bool gathers)
{
    int members = context->tp->group->size;
    size_t run = (size_t)(layer_slice_seq(context) * by_sequence.shape[1] * format_storage_bytes(by_sequence.storage));
    for (int64_t b = 0; b < context->batch; b++) {
        for (int m = 0; m < members; m++) {
            char *one = (char *)by_member.data + ((size_t)m * (size_t)context->batch + (size_t)b) * run;
            char *other = (char *)by_sequence.data + ((size_t)b * (size_t)members + (size_t)m) * run;
            if (gathers) memcpy(other, one, run);
            else memcpy(one, other, run);
        }
    }
}

/* The sketch that the slice has where it stands, zeros elsewhere: those of all slices add up to the whole's. */
static void slice_sketch(const struct layer_context *context, double ret[5], struct tensor slice)
{
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor whole = layer_matrix_alloc(context, slice.shape[1], context->scratch);
    size_t row = (size_t)(slice.shape[1] * format_storage_bytes(slice.storage));
    memset(whole.data, 0, (size_t)tensor_bytes(whole));
    for (int64_t t = 0; t < slice.shape[0]; t++) memcpy((char *)whole.data + (size_t)sequence_row(context, t) * row, (const char *)slice.data + (size_t)t * row, row);
    context->ops->vector_sketch(ret, whole.data, (size_t)tensor_count(whole));
    arena_release(context->scratch, mark);
}

static bool is_watched(const struct layer_context *context)
{
    return context->watch && context->record;
}

static struct sum_fact fact_of(const struct layer_context *context, const struct site *site, bool scattered)
{
    return (struct sum_fact){.site = site, .step = context->where.step, .microbatch = context->where.microbatch, .unit = tensor_parallel_unit(context, site), .scattered = scattered};
}

struct tensor sequence_gather(const struct layer_context *context, const struct site *site, struct tensor slice, enum format wire, struct arena *arena)
{
    if (!context->sequence_split) return slice;
    int64_t columns = slice.shape[1];
    struct comm how = {.site = site, .where = context->where};
    struct sum_fact fact = fact_of(context, site, false);
    struct tensor whole = layer_matrix_alloc(context, columns, arena);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor arrived = context->batch > 1 ? layer_matrix_alloc(context, columns, context->scratch) : whole;
    size_t count = (size_t)tensor_count(slice), all = (size_t)tensor_count(whole);
    if (is_watched(context)) slice_sketch(context, fact.sent, slice);
    all_gather(context->tp->communicator, context->tp->group, &how, (struct buffer){arrived.data, all, slice.storage, wire, NULL},
               (struct buffer){slice.data, count, slice.storage, wire, NULL}, NULL);
    if (arrived.data != whole.data) reorder(context, arrived, whole, true);
    arena_release(context->scratch, mark);
    if (is_watched(context)) {
        context->ops->vector_sketch(fact.received, whole.data, all);
        record_push(context->record, sums, fact);
    }
    return whole;
}

void sequence_reduce_scatter(const struct layer_context *context, const struct site *site, struct tensor slice, struct tensor whole, enum format wire)
{
    struct comm how = {.site = site, .where = context->where};
    struct sum_fact fact = fact_of(context, site, true);
    size_t count = (size_t)tensor_count(slice), all = (size_t)tensor_count(whole);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor leaving = layer_matrix_alloc(context, whole.shape[1], context->scratch);
    reorder(context, leaving, whole, false);
    if (is_watched(context)) context->ops->vector_sketch(fact.sent, whole.data, all);
    reduce_scatter(context->tp->communicator, context->tp->group, &how, (struct buffer){slice.data, count, slice.storage, wire, NULL},
                   (struct buffer){leaving.data, all, slice.storage, wire, NULL}, NULL, REDUCE_SUM);
    arena_release(context->scratch, mark);
    if (!is_watched(context)) return;
    slice_sketch(context, fact.received, slice);
    record_push(context->record, sums, fact);
}

struct tensor sequence_gather_backward(const struct layer_context *context, struct tensor dwhole, enum format format, struct arena *arena)
{
    struct tensor slice = layer_slice_alloc(context, dwhole.shape[1], arena);
    if (!layer_choice(context, &site_sp_gather_backward, tensor_parallel_unit(context, &site_sp_gather_backward), true)) { /* a split: its own part of its own rows */
        size_t row = (size_t)(slice.shape[1] * format_storage_bytes(slice.storage));
        for (int64_t t = 0; t < slice.shape[0]; t++) memcpy((char *)slice.data + (size_t)t * row, (const char *)dwhole.data + (size_t)sequence_row(context, t) * row, row);
        return slice;
    }
    sequence_reduce_scatter(context, &site_tp_input_grad_reduce, slice, dwhole, format);
    tensor_round(slice, format);
    return slice;
}

void sequence_drop_last(const struct layer_context *context, struct tensor rows)
{
    int64_t seq = rows.shape[0] / context->batch;
    bool has_last = seq == context->seq || context->tp->group->me == context->tp->group->size - 1;
    size_t row = (size_t)(rows.shape[1] * format_storage_bytes(rows.storage));
    for (int64_t b = 0; has_last && b < context->batch; b++) memset((char *)rows.data + (size_t)((b + 1) * seq - 1) * row, 0, row);
}
