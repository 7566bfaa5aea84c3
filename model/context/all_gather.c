/* all_gather: every member gathers all keys and values, and computes its queries against them at once.
 *
 *   forward    all-gather of K and of V; rows are put in the order of positions; one call of the kernel, nothing to merge
 *   backward   the same gathers again; dK and dV of all positions, each member's part from its own queries; reduce-scatter
 *              (sum, in storage), so that each member gets the gradient of its rows
 *
 *   four ranks   member 0      member 1      member 2      member 3
 *   start        k0            k1            k2            k3
 *   gathered     k0 k1 k2 k3   k0 k1 k2 k3   k0 k1 k2 k3   k0 k1 k2 k3      put in order of positions
 *
 * Each member has its queries' scores against all keys in turn, and K, V of the whole sequence in memory. Cost a member, e elements
 * a block: forward 2 all-gathers of e; backward 2 more, and 2 reduce-scatters. Joint rows are everywhere and are not sent.
 * Every member's rows are in what is gathered, whether its queries see them or not.
 * Source: Llama 3 (arXiv 2407.21783); TransformerEngine cp_comm_type "all_gather"; zhuzilin llama3_flash_attn_varlen.py. */
#include "model/context/job.h"

#include <string.h>

#include "sim/assertion.h"

struct gathering {
    struct context_job job;
    struct context_block block;
    int64_t gathered;                      /* rows of a sequence that came over the network, or could have */
    size_t *counts;                        /* [size] elements of each member */
    int32_t *place;                        /* [gathered rows, all sequences]: member, sequence, row -> row of the block, -1: nowhere */
};

static size_t row_bytes(struct tensor t)
{
    return (size_t)(t.shape[2] * t.shape[3]) * format_storage_bytes(t.storage);
}

/* Where each member's rows go: to their positions; or, mistaken, one member after the other. */
static void find_places(struct gathering *g)
{
    const struct context_call *call = g->job.call;
    bool ordered = context_decides(call, &site_cp_gather_order, -1, true);
    int64_t at = 0, before = 0;
    g->place = arena_alloc(call->scratch, (size_t)(call->batch * call->seq + 1) * sizeof *g->place);
    for (int c = 0; c < call->cp->group->size; c++) {
        const struct context_rows *rows = &g->job.blocks[c];
        for (int64_t b = 0; b < call->batch; b++) {
            for (int64_t i = 0; i < rows->count; i++) {
                int64_t position = ordered ? rows->positions[b * rows->count + i] : job_own_first(&g->job) + before + i;
                g->place[at++] = position < call->seq ? (int32_t)(b * call->seq + position) : -1;
            }
        }
        before += rows->count;
    }
}

static struct tensor gather_rows(struct gathering *g, struct tensor own, enum context_ledger from, enum context_ledger to)
{
    struct context_job *job = &g->job;
    struct context_call *call = job->call;
    struct tensor flat = context_rows_alloc(call, g->gathered, job->kv_heads, call->scratch), all = context_rows_alloc(call, call->seq, job->kv_heads, call->scratch);
    struct tensor mine = context_rows_take(call, own, job_own_first(job), job->blocks[call->cp->group->me].count);
    struct comm how = {.site = &site_cp_kv_gather, .where = context_where(call, -1)};
    size_t row = row_bytes(all);
    memory_poison(flat.data, (size_t)tensor_bytes(flat));
    memory_poison(all.data, (size_t)tensor_bytes(all));
    all_gather(call->cp->communicator, call->cp->group, &how, context_buffer(flat, call->activation, context_ledger(call, to)),
               context_buffer(mine, call->activation, context_ledger(call, from)), g->counts);
    for (int64_t i = 0; i < call->batch * g->gathered; i++) {
        if (g->place[i] >= 0) memcpy((char *)all.data + (size_t)g->place[i] * row, (const char *)flat.data + (size_t)i * row, row);
    }
    context_rows_put(all, call->joint_place == JOINT_FRONT ? 0 : call->seq - call->joint, context_rows_take(call, own, job_joint_first(job), job->joint.count));
    return all;
}

static struct gathering gather_all(struct context_call *call)
{
    struct context_rows *blocks = context_blocks(call);
    int me = call->cp->group->me, size = call->cp->group->size;
    struct gathering g = {.job = context_job_of(call, blocks, blocks[me]), .gathered = call->seq - call->joint};
    g.counts = arena_alloc(call->scratch, (size_t)size * sizeof *g.counts);
    for (int c = 0; c < size; c++) g.counts[c] = (size_t)(call->batch * blocks[c].count * call->kv_heads * call->head_dim);
    find_places(&g);
    context_ledger_of(call, context_ledger(call, LEDGER_Q), me);
    context_ledger_of(call, context_ledger(call, LEDGER_OWN_K), me);
    context_ledger_of(call, context_ledger(call, LEDGER_OWN_V), me);
    g.block = (struct context_block){.rows = context_all_rows(call), .k_ledger = context_ledger(call, LEDGER_K), .v_ledger = context_ledger(call, LEDGER_V)};
    g.block.k = gather_rows(&g, call->k, LEDGER_OWN_K, LEDGER_K);
    g.block.v = gather_rows(&g, call->v, LEDGER_OWN_V, LEDGER_V);
    return g;
}

static void forward(struct context_call *call)
{
    struct gathering g = gather_all(call);
    struct attending *attending = context_attend_begin(&g.job);
    context_attend(attending, &g.block);
    context_attend_end(attending);
    context_note_consumption(call, false, g.job.times_k, g.job.times_v, NULL, NULL, g.job.others);
}

static void scatter_rows(struct gathering *g, struct tensor all, struct tensor own, enum context_ledger to)
{
    struct context_job *job = &g->job;
    struct context_call *call = job->call;
    struct tensor flat = context_rows_alloc(call, g->gathered, job->kv_heads, call->scratch);
    struct tensor mine = context_rows_alloc(call, job->blocks[call->cp->group->me].count, job->kv_heads, call->scratch);
    struct comm how = {.site = &site_cp_kv_grad_scatter, .where = context_where(call, -1)};
    size_t row = row_bytes(all);
    memory_poison(mine.data, (size_t)tensor_bytes(mine));
    for (int64_t i = 0; i < call->batch * g->gathered; i++) {
        if (g->place[i] >= 0) memcpy((char *)flat.data + (size_t)i * row, (const char *)all.data + (size_t)g->place[i] * row, row);
        else memset((char *)flat.data + (size_t)i * row, 0, row);
    }
    reduce_scatter(call->cp->communicator, call->cp->group, &how, context_buffer(mine, call->ops->storage, context_ledger(call, to)),
                   context_buffer(flat, call->ops->storage, context_ledger(call, LEDGER_ROOM)), g->counts, REDUCE_SUM);
    context_rows_put(own, job_own_first(job), mine);
    context_rows_put(own, job_joint_first(job), context_rows_take(call, all, call->joint_place == JOINT_FRONT ? 0 : call->seq - call->joint, job->joint.count));
}

static void backward(struct context_call *call)
{
    struct gathering g = gather_all(call);
    struct tensor dk = context_rows_alloc(call, call->seq, call->kv_heads, call->scratch), dv = context_rows_alloc(call, call->seq, call->kv_heads, call->scratch);
    int size = call->cp->group->size;
    int32_t *times_dk = arena_zalloc(call->scratch, (size_t)size * sizeof *times_dk), *times_dv = arena_zalloc(call->scratch, (size_t)size * sizeof *times_dv);
    context_gradient_begin(&g.job);
    bool added = context_gradient(&g.job, &g.block, false, dk, dv);
    if (context_ledger(call, LEDGER_ROOM)) {
        ledger_clear(context_ledger(call, LEDGER_ROOM));
        if (added) ledger_add(context_ledger(call, LEDGER_ROOM), context_ledger(call, LEDGER_Q));
    }
    scatter_rows(&g, dk, call->dk, LEDGER_DK);
    scatter_rows(&g, dv, call->dv, LEDGER_DV);
    int32_t others = context_ledger_times(call, context_ledger(call, LEDGER_DK), 1, times_dk);
    others += context_ledger_times(call, context_ledger(call, LEDGER_DV), 1, times_dv);
    context_note_consumption(call, true, g.job.times_k, g.job.times_v, times_dk, times_dv, g.job.others + others);
}

static bool allows(const struct context_shape *shape, char why[320])
{
    (void)shape, (void)why;
    return true;
}

const struct context_method context_method_all_gather = {"all_gather", allows, forward, backward};
