/* attend: blocks' results into one output; an output's gradient into the blocks' gradients.
 *
 * Each block comes with its own softmax: out_b = sum_j e^(s_j - lse_b) v_j. Two such results become one by a merge (merges.def):
 *   lse = log(e^lse_a + e^lse_b),  out = e^(lse_a - lse) out_a + e^(lse_b - lse) out_b
 * linear: in the order in which blocks come, into the first. tree: two by two, those of equal numbers of blocks first, as a
 * binary counter carries; what is left at the end from the last backwards. A sink of a head is a block with lse = the sink and
 * out = 0, merged last. All in storage; out is rounded to the activation format once, at the end.
 *
 * Gradient of a sink: -sum over rows of e^(sink - lse) (sum_d do o). */
#include "model/context/job.h"

#include <math.h>
#include <string.h>

#include "model/precision.h"
#include "sim/assertion.h"

enum { STACK_MAX = 64 };
struct piece { struct context_partial partial; int32_t *k, *v, others; int blocks; };
struct attending {
    struct context_job *job;
    const struct context_merge *merge;
    struct merging merging;
    struct piece *stack[STACK_MAX];
    int pieces, hop;
    bool sinks, sinks_each;
};

static struct tensor out_rows(const struct context_job *job, struct tensor out)
{
    return tensor_2d(out.data, out.storage, job->call->batch * job->queries.count * job->heads, job->call->head_dim);
}

static int64_t rows_of(const struct context_job *job)
{
    return job->call->batch * job->queries.count * job->heads;
}

/* A piece of no blocks: nothing seen, or what stands for it. */
static struct piece *piece_new(const struct context_job *job, double lse)
{
    struct context_call *call = job->call;
    struct piece *piece = arena_zalloc(call->scratch, sizeof *piece);
    size_t members = (size_t)call->cp->group->size * sizeof(int32_t), bytes = (size_t)rows_of(job) * format_storage_bytes(call->ops->storage);
    struct tensor out = context_rows_alloc(call, job->queries.count, job->heads, call->scratch);
    memset(out.data, 0, (size_t)tensor_bytes(out));
    piece->partial.out = out_rows(job, out);
    piece->partial.lse = tensor_1d(arena_alloc(call->scratch, bytes + 1), call->ops->storage, rows_of(job));
    for (int64_t i = 0; i < rows_of(job); i++) format_set(piece->partial.lse.data, (size_t)i, piece->partial.lse.storage, lse);
    piece->k = arena_zalloc(call->scratch, members);
    piece->v = arena_zalloc(call->scratch, members);
    return piece;
}

static void begin(struct attending *a, struct piece *piece)
{
    if (a->merge->begin) a->merge->begin(&a->merging, &piece->partial);
}

static void fold(struct attending *a, struct piece *into, struct piece *block)
{
    struct arena_mark mark = arena_mark(a->merging.scratch);
    a->merge->merge(&a->merging, &into->partial, &block->partial);
    arena_release(a->merging.scratch, mark);
}

/* The last two pieces become one. */
static void join(struct attending *a)
{
    const struct context_call *call = a->job->call;
    struct piece **into = &a->stack[a->pieces - 2], *block = a->stack[a->pieces - 1];
    int blocks = (*into)->blocks + block->blocks;
    enum merging_way way = merge_site(call->plan, &site_cp_merge, context_where(call, a->hop));
    if (way == MERGE_KEEP_LAST) {
        *into = block;
    } else if (way != MERGE_KEEP_FIRST) {
        a->merging.stable = context_decides(call, &site_cp_merge_stable, a->hop, true);
        fold(a, *into, block);
        a->merging.stable = true;
        for (int c = 0; c < call->cp->group->size; c++) {
            (*into)->k[c] += block->k[c];
            (*into)->v[c] += block->v[c];
        }
        (*into)->others += block->others;
    }
    (*into)->blocks = blocks;
    a->pieces--;
    if (!a->merge->keeps_blocks) tensor_site(call->plan, &site_cp_accumulate, context_where(call, a->hop), (*into)->partial.out);
}

static void push(struct attending *a, struct piece *piece)
{
    ASSERT(a->pieces < STACK_MAX);
    begin(a, piece);
    a->stack[a->pieces++] = piece;
    bool tree = a->job->call->cp->tree;
    while (a->pieces > 1 && (!tree || a->stack[a->pieces - 1]->blocks >= a->stack[a->pieces - 2]->blocks)) join(a);
}

struct attending *context_attend_begin(struct context_job *job)
{
    struct context_call *call = job->call;
    struct attending *a = arena_zalloc(call->scratch, sizeof *a);
    a->job = job;
    a->merge = call->cp->merge;
    a->merging = (struct merging){call->ops, call->scratch, true};
    a->sinks = job->sinks.data && context_decides(call, &site_cp_sink, -1, true);
    a->sinks_each = a->sinks && job->ring && !context_decides(call, &site_cp_sink_once, -1, true);
    if (job->ring && call->plan && memory_site_keeps(call->plan, &site_cp_out_init, context_where(call, -1))) push(a, piece_new(job, 0));
    return a;
}

static void merge_sinks(struct attending *a, struct piece *into)
{
    const struct context_job *job = a->job;
    struct piece *sinks = piece_new(job, -INFINITY);
    struct tensor lse = sinks->partial.lse;
    for (int64_t i = 0; i < rows_of(job); i++) format_set(lse.data, (size_t)i, lse.storage, format_get(job->sinks.data, (size_t)(i % job->heads), job->sinks.storage));
    begin(a, sinks);
    fold(a, into, sinks);
}

/* What is done to a block's log-sum-exp on its way into the merge: nothing. Equal ones make the merge an average. */
static void lse_sites(const struct context_job *job, int hop, struct tensor lse)
{
    const struct context_call *call = job->call;
    tensor_site(call->plan, &site_cp_lse, context_where(call, hop), lse);
    enum merging_way way = merge_site(call->plan, &site_cp_merge, context_where(call, hop));
    if (way != MERGE_AVERAGE && way != MERGE_SUM) return;
    for (int64_t i = 0; i < tensor_count(lse); i++) format_set(lse.data, (size_t)i, lse.storage, 0);
}

/* Does any row have anything of this block? */
static bool any_seen(struct tensor lse)
{
    for (int64_t i = 0; i < tensor_count(lse); i++) {
        if (format_get(lse.data, (size_t)i, lse.storage) != -INFINITY) return true;
    }
    return false;
}

static struct piece *piece_of(const struct context_job *job, const struct context_block *block, bool bare)
{
    struct context_call *call = job->call;
    struct piece *piece = piece_new(job, -INFINITY);
    struct tensor out = piece->partial.out, lse = piece->partial.lse;
    context_block_forward(job, block, bare, tensor_4d(out.data, out.storage, call->batch, job->queries.count, job->heads, call->head_dim),
                          tensor_3d(lse.data, lse.storage, call->batch, job->queries.count, job->heads));
    piece->blocks = 1;
    if (any_seen(lse)) {
        piece->others = context_ledger_times(call, block->k_ledger, 1, piece->k);
        piece->others += context_ledger_times(call, block->v_ledger, 1, piece->v);
    }
    if (job->ring) lse_sites(job, block->hop, lse);
    return piece;
}

void context_attend(struct attending *a, const struct context_block *block)
{
    struct context_job *job = a->job;
    struct context_call *call = job->call;
    struct arena_mark mark = arena_mark(call->scratch);
    struct piece *before = a->pieces > 0 ? a->stack[0] : NULL;
    bool bare, once;
    if (!context_computes(job, block, &bare)) return;
    a->hop = block->hop;
    struct piece *piece = piece_of(job, block, bare);
    if (a->sinks_each) {
        begin(a, piece);
        merge_sinks(a, piece);
        if (a->merge->finish) a->merge->finish(&a->merging, &piece->partial);
        piece->partial.next = NULL;
    }
    once = context_decides(call, &site_cp_kv_block, block->hop, true);
    push(a, piece);
    if (!once) push(a, piece_of(job, block, bare));
    if (before && a->pieces == 1 && a->stack[0] == before && !a->merge->keeps_blocks) arena_release(call->scratch, mark); /* all is in what was there */
}

void context_attend_end(struct attending *a)
{
    struct context_job *job = a->job;
    struct context_call *call = job->call;
    if (a->pieces == 0) push(a, piece_new(job, -INFINITY));
    while (a->pieces > 1) join(a);
    struct piece *all = a->stack[0];
    if (a->sinks && !a->sinks_each) merge_sinks(a, all);
    if (a->merge->finish) a->merge->finish(&a->merging, &all->partial);
    if (job->ring && merge_site(call->plan, &site_cp_merge, context_where(call, a->hop)) == MERGE_SUM) /* equal weights: the average */
        call->ops->vector_scale(all->partial.out.data, all->blocks, (size_t)tensor_count(all->partial.out));
    if (a->merge->keeps_blocks && job->ring) tensor_site(call->plan, &site_cp_accumulate, context_where(call, a->hop), all->partial.out);
    if (rows_of(job) > 0) memcpy(job->out.data, all->partial.out.data, (size_t)tensor_bytes(all->partial.out));
    tensor_round(job->out, call->activation);
    context_swap_axes(job->lse, tensor_3d(all->partial.lse.data, all->partial.lse.storage, call->batch, job->queries.count, job->heads));
    memcpy(job->times_k, all->k, (size_t)call->cp->group->size * sizeof *all->k);
    memcpy(job->times_v, all->v, (size_t)call->cp->group->size * sizeof *all->v);
    job->others = all->others;
}

/* ---- backward ---- */

static void zero(struct tensor t)
{
    if (tensor_count(t) > 0) memset(t.data, 0, (size_t)tensor_bytes(t));
}

static void sinks_gradient(struct context_job *job)
{
    struct context_call *call = job->call;
    int64_t rows = rows_of(job), queries = job->queries.count;
    size_t bytes = (size_t)rows * format_storage_bytes(call->ops->storage);
    struct tensor delta = tensor_1d(arena_alloc(call->scratch, bytes + 1), call->ops->storage, rows);
    struct tensor weight = tensor_1d(arena_alloc(call->scratch, bytes + 1), call->ops->storage, rows);
    call->ops->row_dots(delta, out_rows(job, job->out), out_rows(job, job->d_out));
    for (int64_t i = 0; i < rows; i++) { /* [batch, queries, heads] */
        int64_t h = i % job->heads, at = i / job->heads, b = at / queries, row = at % queries;
        double lse = format_get(job->lse.data, (size_t)((b * job->heads + h) * queries + row), job->lse.storage);
        format_set(weight.data, (size_t)i, weight.storage, format_get(job->sinks.data, (size_t)h, job->sinks.storage) - lse);
    }
    call->ops->exponential(weight, weight);
    for (int64_t h = 0; h < job->heads; h++) {
        double sum = 0;
        for (int64_t i = h; i < rows; i += job->heads)
            sum += format_get(weight.data, (size_t)i, weight.storage) * format_get(delta.data, (size_t)i, delta.storage);
        format_set(job->d_sinks.data, (size_t)h, job->d_sinks.storage, format_get(job->d_sinks.data, (size_t)h, job->d_sinks.storage) - sum);
    }
}

/* Each of `lone` members makes the joint rows' output, and its cotangent is given to each. */
static struct tensor weighted(struct context_job *job)
{
    struct context_call *call = job->call;
    if (job->joint.count == 0 || job->lone == 1) return job->d_out;
    struct tensor d_out = context_rows_alloc(call, job->queries.count, job->heads, call->scratch);
    memcpy(d_out.data, job->d_out.data, (size_t)tensor_bytes(d_out));
    size_t row = (size_t)(job->heads * call->head_dim), width = format_storage_bytes(d_out.storage);
    for (int64_t b = 0; b < call->batch; b++)
        call->ops->vector_divide((char *)d_out.data + (size_t)(b * job->queries.count + job_joint_first(job)) * row * width, job->lone,
                                 (size_t)job->joint.count * row);
    return d_out;
}

void context_gradient_begin(struct context_job *job)
{
    zero(job->dq), zero(job->dk), zero(job->dv);
    job->d_out = weighted(job);
    if (job->sinks.data && job->d_sinks.data && context_decides(job->call, &site_cp_sink, -1, true)) sinks_gradient(job);
}

static void note_times(struct context_job *job, const struct context_block *block)
{
    struct context_call *call = job->call;
    int32_t *times = arena_alloc(call->scratch, (size_t)call->cp->group->size * sizeof *times);
    job->others += context_ledger_times(call, block->k_ledger, 1, times);
    for (int c = 0; c < call->cp->group->size; c++) job->times_k[c] += times[c];
    job->others += context_ledger_times(call, block->v_ledger, 1, times);
    for (int c = 0; c < call->cp->group->size; c++) job->times_v[c] += times[c];
}

bool context_gradient(struct context_job *job, const struct context_block *block, bool with_joint, struct tensor dk, struct tensor dv)
{
    struct context_call *call = job->call;
    struct arena_mark mark = arena_mark(call->scratch);
    bool bare, added = false;
    zero(dk), zero(dv);
    if (!context_computes(job, block, &bare)) return false;
    struct tensor dq = context_rows_alloc(call, job->queries.count, job->heads, call->scratch);
    struct tensor all_dk = context_rows_alloc(call, block->rows.count, job->kv_heads, call->scratch);
    struct tensor all_dv = context_rows_alloc(call, block->rows.count, job->kv_heads, call->scratch);
    context_block_backward(job, block, bare, dq, all_dk, all_dv);
    if (context_decides(call, &site_cp_dq_step, block->hop, true)) {
        call->ops->vector_add(job->dq.data, job->dq.data, dq.data, (size_t)tensor_count(dq));
        tensor_site(call->plan, &site_cp_dq, context_where(call, block->hop), job->dq);
        note_times(job, block);
    }
    if (context_decides(call, &site_cp_dkv_step, block->hop, true)) {
        int64_t own = with_joint ? block->rows.count - job->joint.count : block->rows.count, front = call->joint_place == JOINT_FRONT ? job->joint.count : 0;
        struct tensor from[2] = {all_dk, all_dv}, own_to[2] = {dk, dv}, joint_to[2] = {job->dk, job->dv};
        for (int i = 0; i < 2; i++) {
            context_rows_put(own_to[i], 0, context_rows_take(call, from[i], with_joint ? front : 0, own));
            if (with_joint)
                context_rows_add(call->ops, joint_to[i], job_joint_first(job), context_rows_take(call, from[i], front > 0 ? 0 : own, job->joint.count));
        }
        added = true;
    }
    arena_release(call->scratch, mark);
    return added;
}
