/* block: attention of the job's queries to one block of keys, by the kernel of one device.
 *
 *   forward    out_b, lse_b of the block alone: model/kernels/attention.c, with the positions and documents of both sides
 *   backward   with the whole row's lse and out:  p = exp(s - lse),  delta = sum_d do o,  ds = p (do v - delta) scale;
 *              so the blocks' dq add up to dq, and dk, dv are the block's (Dao et al. 2022; Liu et al. 2023)
 *
 * A block that no query sees is not computed. Order of sums: as in the kernel, within a block. */
#include "model/context/job.h"

#include <math.h>
#include <string.h>

#include "sim/assertion.h"

/* ---- who sees whom ---- */

static bool sequence_sees(const struct context_job *job, const struct context_rows *keys, int64_t b, bool causal)
{
    const struct context_rows *q = &job->queries;
    const int32_t *at = q->positions + b * q->count, *of = keys->positions + b * keys->count;
    int64_t window = job->call->window, first = 0;
    for (int64_t i = 0; i < q->count; i++) {
        while (first < keys->count && window > 0 && of[first] <= at[i] - window) first++;
        for (int64_t j = first; j < keys->count; j++) {
            if (causal && of[j] > at[i]) break;
            if (window > 0 && of[j] >= at[i] + window) break;
            if (!q->documents) return true;
            int32_t document = q->documents[b * q->count + i];
            if (document >= 0 && document == keys->documents[b * keys->count + j]) return true;
        }
    }
    return false;
}

bool context_sees(const struct context_job *job, const struct context_rows *keys, bool causal)
{
    for (int64_t b = 0; b < job->call->batch; b++) {
        if (sequence_sees(job, keys, b, causal)) return true;
    }
    return false;
}

bool context_computes(const struct context_job *job, const struct context_block *block, bool *ret_bare)
{
    const struct context_call *call = job->call;
    *ret_bare = false;
    if (!job->ring) return true;
    bool hidden = !context_sees(job, &block->rows, call->causal), later = block->hop > job->me; /* later: what a causal mask hides, of contiguous shards */
    bool skips = context_skips(call, &site_cp_skip_block, block->hop, hidden, hidden || later);
    *ret_bare = hidden && !skips && call->causal; /* who does not skip it trusts that it is skipped: its kernel gets the mask for the own block alone */
    return !skips;
}

/* ---- what the kernel is given ---- */

static struct attention_view view_of(const struct context_job *job, const struct context_block *block, bool bare)
{
    const struct context_call *call = job->call;
    int hop = block->hop;
    struct attention_view view = {.q_positions = job->queries.positions, .k_positions = block->rows.positions, .causal = call->causal};
    view.causal = context_decides(call, &site_cp_mask_passed, hop, call->causal);
    if (job->ring && hop == 0) view.causal = context_decides(call, &site_cp_diagonal_mask, hop, view.causal);
    view.causal = view.causal && !bare;
    if (call->window > 0 && context_decides(call, &site_cp_window_passed, hop, true)) view.window = call->window;
    if (call->documents && context_decides(call, &site_cp_documents_passed, hop, true)) {
        view.q_documents = job->queries.documents;
        view.k_documents = block->rows.documents;
    }
    view.scale = context_factor(call, &site_cp_softmax_scale, hop, 1 / sqrt((double)call->head_dim));
    if (view.scale == 0) view.scale = 0x1p-1074; /* 0 means the default */
    return view;
}

static void *kernel_scratch(const struct context_job *job, int64_t queries, int64_t keys)
{
    const struct context_call *call = job->call;
    return arena_alloc(call->scratch, call->ops->attention_scratch(queries > keys ? queries : keys, call->head_dim));
}

static struct tensor lse_alloc(const struct context_job *job)
{
    const struct context_call *call = job->call;
    size_t bytes = (size_t)(call->batch * job->heads * job->queries.count) * format_storage_bytes(call->ops->storage);
    return tensor_3d(arena_alloc(call->scratch, bytes + 1), call->ops->storage, call->batch, job->heads, job->queries.count);
}

/* to [batch, b, a] from [batch, a, b] */
void context_swap_axes(struct tensor to, struct tensor from)
{
    int64_t a_count = from.shape[1], b_count = from.shape[2];
    for (int64_t s = 0; s < from.shape[0]; s++) {
        for (int64_t a = 0; a < a_count; a++) {
            for (int64_t b = 0; b < b_count; b++)
                format_set(to.data, (size_t)((s * b_count + b) * a_count + a), to.storage,
                           format_get(from.data, (size_t)((s * a_count + a) * b_count + b), from.storage));
        }
    }
}

/* ---- axes taken for each other: each position's heads attend to its own heads ---- */

static bool over_positions(const struct context_job *job, const struct context_block *block)
{
    return context_decides(job->call, &site_cp_axes, block->hop, true);
}

/* Positions first .. of sequence b, as so many sequences of one head each. */
static struct tensor heads_as_rows(struct tensor t, int64_t b, int64_t rows)
{
    size_t at = (size_t)(b * t.shape[1] * t.shape[2] * t.shape[3]) * format_storage_bytes(t.storage);
    return tensor_4d((char *)t.data + at, t.storage, rows, t.shape[2], 1, t.shape[3]);
}

static struct tensor lse_as_rows(struct tensor lse, int64_t b, int64_t rows) /* lse [batch, rows, heads] */
{
    size_t at = (size_t)(b * lse.shape[1] * lse.shape[2]) * format_storage_bytes(lse.storage);
    return tensor_3d((char *)lse.data + at, lse.storage, rows, 1, lse.shape[2]);
}

static void fill(struct tensor t, double value)
{
    for (int64_t i = 0; i < tensor_count(t); i++) format_set(t.data, (size_t)i, t.storage, value);
}

static void forward_over_heads(const struct context_job *job, const struct context_block *block, double scale, struct tensor out, struct tensor lse)
{
    const struct context_call *call = job->call;
    struct attention_view view = {.scale = scale};
    int64_t rows = job->queries.count < block->rows.count ? job->queries.count : block->rows.count;
    void *scratch = kernel_scratch(job, job->heads, job->kv_heads);
    fill(out, 0);
    fill(lse, -INFINITY);
    for (int64_t b = 0; b < call->batch; b++)
        call->ops->attention_forward(heads_as_rows(out, b, rows), lse_as_rows(lse, b, rows), heads_as_rows(job->q, b, rows),
                                     heads_as_rows(block->k, b, rows), heads_as_rows(block->v, b, rows), &view, call->softmax, scratch);
}

static void backward_over_heads(const struct context_job *job, const struct context_block *block, double scale, struct tensor o, struct tensor lse,
                                struct tensor dq, struct tensor dk, struct tensor dv)
{
    const struct context_call *call = job->call;
    struct attention_view view = {.scale = scale};
    int64_t rows = job->queries.count < block->rows.count ? job->queries.count : block->rows.count;
    void *scratch = kernel_scratch(job, job->heads, job->kv_heads);
    fill(dq, 0), fill(dk, 0), fill(dv, 0);
    for (int64_t b = 0; b < call->batch; b++)
        call->ops->attention_backward(heads_as_rows(dq, b, rows), heads_as_rows(dk, b, rows), heads_as_rows(dv, b, rows), heads_as_rows(job->d_out, b, rows),
                                      heads_as_rows(job->q, b, rows), heads_as_rows(block->k, b, rows), heads_as_rows(block->v, b, rows),
                                      heads_as_rows(o, b, rows), lse_as_rows(lse, b, rows), &view, call->softmax, scratch);
}

/* ---- one block ---- */

void context_block_forward(const struct context_job *job, const struct context_block *block, bool bare, struct tensor out, struct tensor lse)
{
    const struct context_call *call = job->call;
    struct arena_mark mark = arena_mark(call->scratch);
    struct attention_view view = view_of(job, block, bare);
    if (!over_positions(job, block)) {
        forward_over_heads(job, block, view.scale, out, lse);
    } else {
        struct tensor by_heads = lse_alloc(job);
        call->ops->attention_forward(out, by_heads, job->q, block->k, block->v, &view, call->softmax, kernel_scratch(job, job->queries.count, block->rows.count));
        if (!job->ring || context_decides(call, &site_cp_lse_index, block->hop, true)) context_swap_axes(lse, by_heads);
        else if (tensor_count(lse) > 0) memcpy(lse.data, by_heads.data, (size_t)tensor_bytes(lse));
    }
    arena_release(call->scratch, mark);
}

void context_block_backward(const struct context_job *job, const struct context_block *block, bool bare, struct tensor dq, struct tensor dk, struct tensor dv)
{
    const struct context_call *call = job->call;
    struct arena_mark mark = arena_mark(call->scratch);
    struct attention_view view = view_of(job, block, bare);
    struct tensor o = job->out, lse = job->lse, by_rows = lse_alloc(job);
    bool positions = over_positions(job, block), whole = context_decides(call, &site_cp_backward_stats, block->hop, true);
    by_rows = tensor_3d(by_rows.data, by_rows.storage, call->batch, job->queries.count, job->heads);
    if (whole) context_swap_axes(by_rows, lse);
    if (!whole) { /* the block's own */
        o = context_rows_alloc(call, job->queries.count, job->heads, call->scratch);
        lse = lse_alloc(job);
        if (positions) call->ops->attention_forward(o, lse, job->q, block->k, block->v, &view, call->softmax, kernel_scratch(job, job->queries.count, block->rows.count));
        else forward_over_heads(job, block, view.scale, o, by_rows);
    }
    if (!context_decides(call, &site_cp_delta, block->hop, true)) {
        o = context_rows_alloc(call, job->queries.count, job->heads, call->scratch);
        fill(o, 0);
    }
    if (positions)
        call->ops->attention_backward(dq, dk, dv, job->d_out, job->q, block->k, block->v, o, lse, &view, call->softmax,
                                      kernel_scratch(job, job->queries.count, block->rows.count));
    else
        backward_over_heads(job, block, view.scale, o, by_rows, dq, dk, dv);
    arena_release(call->scratch, mark);
}
