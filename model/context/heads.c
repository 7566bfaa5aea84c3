/* heads: all-to-alls between slices of the sequence and parts of the heads (DeepSpeed-Ulysses).
 *
 * U members; member m has n_m rows of all heads, and afterwards all the members' rows of heads m H/U .. (m + 1) H/U - 1, put in the
 * order of positions; and of the key/value heads that these read, m G/U .. alike.
 *
 *   four ranks, heads a b c d       member 0     member 1     member 2     member 3
 *   slices of the sequence          0: a b c d   1: a b c d   2: a b c d   3: a b c d
 *   all-to-all                      a: 0 1 2 3   b: 0 1 2 3   c: 0 1 2 3   d: 0 1 2 3
 *
 * forward    q, k, v there (cp.seq_to_head), attention, out back (cp.head_to_seq): 4 all-to-alls. With out rides each row's
 *            log-sum-exp, beside a real system's payload (uncounted)
 * backward   d_out there, dq, dk, dv back: 4 all-to-alls; q, k, v, out and lse of the heads are those that forward kept
 *
 * Joint rows are on every member: of queries, keys and values each takes its heads, nothing is sent; of their output each sends its
 * heads' part to all. Their gradients are on the member that has the heads, zero elsewhere: parts of a sum over the group.
 * Formats: activation for q, k, v, out; storage for gradients. Nothing is added. Cost a member, e elements a tensor: (U - 1) messages
 * and e (U - 1) / U elements each.
 * In between: one block (ulysses), or a ring of the groups' rows (usp; Fang & Zhao 2024, arXiv 2405.07719).
 * Source: Jacobs et al. 2023 (arXiv 2309.14509). */
#include "model/context/job.h"

#include <stdio.h>
#include <string.h>

#include "sim/assertion.h"

struct exchange {
    struct context_call *call;
    struct group *group;                   /* ulysses */
    int first;                             /* member of the whole group that its first member is */
    struct context_rows *members, joint;   /* [group size]: own rows of each; the joint ones */
    struct context_rows here;              /* all members' rows, in order */
    int32_t **place;                       /* [group size] -> [batch, rows]: where a member's row stands among `here` */
    bool runs;                             /* query heads go in runs */
};
struct heads_saved { struct tensor q, k, v, out, lse; };

/* ---- who has which rows and heads ---- */

/* The rows of several members in the order of positions. */
static struct context_rows united(const struct context_call *call, const struct context_rows *members, int count, int32_t **place)
{
    struct context_rows all = {0};
    for (int m = 0; m < count; m++) all.count += members[m].count;
    size_t bytes = (size_t)(call->batch * all.count) * sizeof(int32_t);
    all.positions = arena_alloc(call->scratch, bytes + 1);
    all.documents = call->documents ? arena_alloc(call->scratch, bytes + 1) : NULL;
    int64_t *at = arena_alloc(call->scratch, (size_t)count * sizeof *at);
    for (int64_t b = 0; b < call->batch; b++) {
        memset(at, 0, (size_t)count * sizeof *at);
        for (int64_t i = 0; i < all.count; i++) {
            int least = -1;
            for (int m = 0; m < count; m++) {
                if (at[m] == members[m].count) continue;
                if (least < 0 || members[m].positions[b * members[m].count + at[m]] < members[least].positions[b * members[least].count + at[least]]) least = m;
            }
            int64_t from = b * members[least].count + at[least]++;
            all.positions[b * all.count + i] = members[least].positions[from];
            if (all.documents) all.documents[b * all.count + i] = members[least].documents[from];
            if (place) place[least][from] = (int32_t)i;
        }
    }
    return all;
}

/* Head j of member m, of `heads` in all. */
static int head_of(const struct exchange *x, int m, int j, int heads, bool of_queries)
{
    return x->runs || !of_queries ? m * (heads / x->group->size) + j : j * x->group->size + m;
}

static struct exchange exchange_of(struct context_call *call, struct group *group, struct context_rows *blocks)
{
    struct exchange x = {.call = call, .group = group, .first = call->cp->group->me - group->me};
    ASSERT(x.first % group->size == 0);
    x.members = blocks + x.first;
    x.joint = context_joint_rows(call);
    x.place = arena_alloc(call->scratch, (size_t)group->size * sizeof *x.place);
    for (int m = 0; m < group->size; m++) x.place[m] = arena_alloc(call->scratch, (size_t)(call->batch * x.members[m].count + 1) * sizeof **x.place);
    x.here = united(call, x.members, group->size, x.place);
    x.runs = group->size == 1 || context_decides(call, &site_cp_head_split, -1, true);
    return x;
}

static int64_t front_of(const struct exchange *x) /* rows in front of own ones, on both sides */
{
    return x->call->joint_place == JOINT_FRONT ? x->joint.count : 0;
}

/* ---- moving heads ---- */

static char *head_at(struct tensor t, int64_t b, int64_t row, int head)
{
    return (char *)t.data + (size_t)(((b * t.shape[1] + row) * t.shape[2] + head) * t.shape[3]) * format_storage_bytes(t.storage);
}

static size_t head_bytes(struct tensor t)
{
    return (size_t)t.shape[3] * format_storage_bytes(t.storage);
}

/* Rows of joint tokens: first .. first + count - 1 of t. */
static int64_t joint_at(const struct exchange *x, struct tensor t)
{
    return x->call->joint_place == JOINT_FRONT ? 0 : t.shape[1] - x->joint.count;
}

static void send_all(const struct exchange *x, const struct site *site, enum format wire, struct tensor like, char *out, char *in, const size_t *out_counts,
                     const size_t *in_counts, size_t uncounted, struct ledger *to, struct ledger *from)
{
    size_t in_all = 0, out_all = 0;
    for (int m = 0; m < x->group->size; m++) in_all += in_counts[m], out_all += out_counts[m];
    struct comm how = {.site = site, .where = context_where(x->call, -1), .uncounted = uncounted};
    memory_poison(out, out_all * format_storage_bytes(like.storage));
    all_to_all_uneven(x->call->cp->communicator, x->group, &how, (struct buffer){out, out_all, like.storage, wire, to},
                      (struct buffer){in, in_all, like.storage, wire, from}, in_counts, out_counts);
}

/* [batch, slice, heads, D] -> [batch, all rows here, heads / U, D] */
static struct tensor to_heads(const struct exchange *x, struct tensor t, bool of_queries, enum format wire, struct arena *arena, struct ledger *to, struct ledger *from)
{
    const struct context_call *call = x->call;
    int size = x->group->size, me = x->group->me, heads = (int)t.shape[2], each = heads / size;
    size_t width = format_storage_bytes(t.storage), head = head_bytes(t), *in_counts = arena_alloc(call->scratch, (size_t)size * sizeof(size_t));
    size_t *out_counts = arena_alloc(call->scratch, (size_t)size * sizeof(size_t)), out_all = 0;
    for (int m = 0; m < size; m++) {
        in_counts[m] = (size_t)(call->batch * x->members[me].count * each * call->head_dim);
        out_all += out_counts[m] = (size_t)(call->batch * x->members[m].count * each * call->head_dim);
    }
    char *packed = arena_alloc(call->scratch, in_counts[0] * (size_t)size * width + 1), *arrived = arena_alloc(call->scratch, out_all * width + 1), *at = packed;
    for (int m = 0; m < size; m++) {
        for (int64_t b = 0; b < call->batch; b++) {
            for (int64_t i = 0; i < x->members[me].count; i++) {
                for (int j = 0; j < each; j++, at += head) memcpy(at, head_at(t, b, front_of(x) + i, head_of(x, m, j, heads, of_queries)), head);
            }
        }
    }
    send_all(x, &site_cp_seq_to_head, wire, t, arrived, packed, out_counts, in_counts, 0, to, from);
    struct tensor ret = context_rows_alloc(call, x->here.count + x->joint.count, each, arena);
    at = arrived;
    for (int m = 0; m < size; m++) {
        for (int64_t b = 0; b < call->batch; b++) {
            for (int64_t i = 0; i < x->members[m].count; i++, at += head * (size_t)each)
                memcpy(head_at(ret, b, front_of(x) + x->place[m][b * x->members[m].count + i], 0), at, head * (size_t)each);
        }
    }
    for (int64_t b = 0; b < call->batch; b++) {
        for (int64_t i = 0; i < x->joint.count; i++) {
            for (int j = 0; j < each; j++)
                memcpy(head_at(ret, b, joint_at(x, ret) + i, j), head_at(t, b, joint_at(x, t) + i, head_of(x, me, j, heads, of_queries)), head);
        }
    }
    return ret;
}

/* Back. lse.data not NULL: t is the output, whose joint rows go to all, and each row's lse [batch, heads / U, rows] rides along into
 * ret_lse [batch, heads, slice]; else t is a gradient, and joint rows get this member's heads, zeros in the others. */
static void from_heads(const struct exchange *x, struct tensor ret, struct tensor t, bool of_queries, enum format wire, struct tensor ret_lse, struct tensor lse,
                       struct ledger *to, struct ledger *from)
{
    const struct context_call *call = x->call;
    int size = x->group->size, me = x->group->me, heads = (int)ret.shape[2], each = heads / size;
    int64_t joint = lse.data ? x->joint.count : 0, most = 0;
    size_t width = format_storage_bytes(t.storage), head = head_bytes(t), *in_counts = arena_alloc(call->scratch, (size_t)size * sizeof(size_t));
    size_t *out_counts = arena_alloc(call->scratch, (size_t)size * sizeof(size_t)), in_all = 0, out_all = 0;
    for (int m = 0; m < size; m++) most = x->members[m].count > most ? x->members[m].count : most;
    size_t riding = lse.data ? (size_t)(call->batch * (most + joint) * each) : 0;
    for (int m = 0; m < size; m++) {
        in_all += in_counts[m] = (size_t)(call->batch * (x->members[m].count + joint) * each * call->head_dim) + riding;
        out_all += out_counts[m] = (size_t)(call->batch * (x->members[me].count + joint) * each * call->head_dim) + riding;
    }
    char *packed = arena_alloc(call->scratch, in_all * width + 1), *arrived = arena_alloc(call->scratch, out_all * width + 1), *at = packed;
    for (int m = 0; m < size; m++) {
        int64_t rows = x->members[m].count, seen = 0;
        char *numbers = packed; /* where the riding numbers of the part begin */
        for (int before = 0; before <= m; before++) numbers += in_counts[before] * width;
        numbers -= riding * width;
        for (int64_t b = 0; b < call->batch; b++) {
            for (int64_t i = 0; i < rows + joint; i++) {
                int64_t row = i < rows ? front_of(x) + x->place[m][b * rows + i] : joint_at(x, t) + i - rows;
                memcpy(at, head_at(t, b, row, 0), head * (size_t)each);
                at += head * (size_t)each;
                for (int j = 0; j < each && lse.data; j++, seen++)
                    format_set(numbers, (size_t)seen, t.storage, format_get(lse.data, (size_t)((b * each + j) * t.shape[1] + row), lse.storage));
            }
        }
        for (; seen < (int64_t)riding; seen++) format_set(numbers, (size_t)seen, t.storage, 0);
        at += riding * width;
    }
    send_all(x, &site_cp_head_to_seq, wire, t, arrived, packed, out_counts, in_counts, riding, to, from);
    if (!lse.data && tensor_count(ret) > 0) memset(ret.data, 0, (size_t)tensor_bytes(ret));
    at = arrived;
    for (int m = 0; m < size; m++) {
        int64_t rows = x->members[me].count, seen = 0;
        const char *numbers = at + (out_counts[m] - riding) * width;
        for (int64_t b = 0; b < call->batch; b++) {
            for (int64_t i = 0; i < rows + joint; i++) {
                int64_t row = i < rows ? front_of(x) + i : joint_at(x, ret) + i - rows;
                for (int j = 0; j < each; j++, at += head) {
                    int h = head_of(x, m, j, heads, of_queries);
                    memcpy(head_at(ret, b, row, h), at, head);
                    if (!lse.data) continue;
                    size_t number = (size_t)((b * heads + h) * ret.shape[1] + row);
                    format_set(ret_lse.data, number, ret_lse.storage, format_get(numbers, (size_t)seen++, t.storage));
                }
            }
        }
        at += riding * width;
    }
    for (int64_t b = 0; b < call->batch && !lse.data; b++) {
        for (int64_t i = 0; i < x->joint.count; i++) {
            for (int j = 0; j < each; j++)
                memcpy(head_at(ret, b, joint_at(x, ret) + i, head_of(x, me, j, heads, of_queries)), head_at(t, b, joint_at(x, t) + i, j), head);
        }
    }
}

/* ---- the job in between ---- */

static struct context_job job_of(const struct exchange *x, struct context_rows *blocks, struct group *ring)
{
    struct context_call *call = x->call;
    struct context_job job = context_job_of(call, NULL, x->here);
    int size = x->group->size;
    job.group = ring;
    job.size = ring ? ring->size : 1;
    job.me = ring ? ring->me : 0;
    job.ring = job.size > 1;
    job.lone = job.size;
    job.heads = call->heads / size;
    job.kv_heads = call->kv_heads / size;
    ASSERT(job.size * size == call->cp->group->size && job.me * size == x->first);
    job.blocks = arena_alloc(call->scratch, (size_t)job.size * sizeof *job.blocks);
    for (int c = 0; c < job.size; c++) job.blocks[c] = c == job.me ? x->here : united(call, blocks + c * size, size, NULL);
    size_t width = format_storage_bytes(call->ops->storage);
    job.sinks = job.d_sinks = (struct tensor){.data = NULL};
    if (call->sinks.data) {
        job.sinks = tensor_1d(arena_alloc(call->scratch, (size_t)job.heads * width), call->ops->storage, job.heads);
        job.d_sinks = tensor_1d(arena_zalloc(call->scratch, (size_t)job.heads * width), call->ops->storage, job.heads);
        for (int j = 0; j < job.heads; j++) {
            size_t h = (size_t)head_of(x, x->group->me, j, call->heads, true);
            format_set(job.sinks.data, (size_t)j, job.sinks.storage, format_get(call->sinks.data, h, call->sinks.storage));
        }
    }
    return job;
}

static struct tensor lse_alloc(const struct context_job *job, struct arena *arena)
{
    size_t bytes = (size_t)(job->call->batch * job->heads * job->queries.count) * format_storage_bytes(job->call->ops->storage);
    return tensor_3d(arena_alloc(arena, bytes + 1), job->call->ops->storage, job->call->batch, job->heads, job->queries.count);
}

/* The whole group's member, in ledgers of what goes out. */
static void ledgers_begin(const struct context_call *call)
{
    context_ledger_of(call, context_ledger(call, LEDGER_Q), call->cp->group->me);
    context_ledger_of(call, context_ledger(call, LEDGER_K), call->cp->group->me);
    context_ledger_of(call, context_ledger(call, LEDGER_V), call->cp->group->me);
}

void context_heads_forward(struct context_call *call, struct group *ulysses, struct group *ring)
{
    struct context_rows *blocks = context_blocks(call);
    struct exchange x = exchange_of(call, ulysses, blocks);
    struct context_job job = job_of(&x, blocks, ring);
    struct heads_saved *saved = arena_alloc(call->kept, sizeof *saved);
    ledgers_begin(call);
    *saved = (struct heads_saved){
        .q = to_heads(&x, call->q, true, call->activation, call->kept, NULL, NULL),
        .k = to_heads(&x, call->k, false, call->activation, call->kept, context_ledger(call, LEDGER_OWN_K), context_ledger(call, LEDGER_K)),
        .v = to_heads(&x, call->v, false, call->activation, call->kept, context_ledger(call, LEDGER_OWN_V), context_ledger(call, LEDGER_V)),
        .out = context_rows_alloc(call, job.queries.count, job.heads, call->kept), .lse = lse_alloc(&job, call->kept),
    };
    job.q = saved->q, job.k = saved->k, job.v = saved->v, job.out = saved->out, job.lse = saved->lse;
    call->saved = saved;
    context_ring_forward(&job);
    from_heads(&x, call->out, saved->out, true, call->activation, call->lse, saved->lse, NULL, NULL);
    context_note_consumption(call, false, job.times_k, job.times_v, NULL, NULL, job.others);
}

static void sinks_back(const struct exchange *x, const struct context_job *job)
{
    struct context_call *call = x->call;
    for (int j = 0; j < job->heads && call->sinks.data && call->d_sinks.data; j++) {
        size_t h = (size_t)head_of(x, x->group->me, j, call->heads, true);
        format_set(call->d_sinks.data, h, call->d_sinks.storage,
                   format_get(call->d_sinks.data, h, call->d_sinks.storage) + format_get(job->d_sinks.data, (size_t)j, job->d_sinks.storage));
    }
}

void context_heads_backward(struct context_call *call, struct group *ulysses, struct group *ring)
{
    const struct heads_saved *saved = call->saved;
    struct context_rows *blocks = context_blocks(call);
    struct exchange x = exchange_of(call, ulysses, blocks);
    struct context_job job = job_of(&x, blocks, ring);
    enum format storage = call->ops->storage;
    struct tensor none = {.data = NULL};
    int size = call->cp->group->size;
    int32_t *dk = arena_zalloc(call->scratch, (size_t)size * sizeof *dk), *dv = arena_zalloc(call->scratch, (size_t)size * sizeof *dv);
    ASSERT_MESSAGE(saved, "the backward of rank %d needs what its forward kept", call->where.rank);
    ledgers_begin(call);
    if (context_ledger(call, LEDGER_OWN_K)) { /* as forward gathered them */
        ledger_clear(context_ledger(call, LEDGER_OWN_K));
        ledger_clear(context_ledger(call, LEDGER_OWN_V));
    }
    job.q = saved->q, job.k = saved->k, job.v = saved->v, job.out = saved->out, job.lse = saved->lse;
    job.d_out = to_heads(&x, call->d_out, true, storage, call->scratch, context_ledger(call, LEDGER_ROOM), context_ledger(call, LEDGER_Q));
    if (context_ledger(call, LEDGER_Q)) {
        ledger_copy(context_ledger(call, LEDGER_Q), context_ledger(call, LEDGER_ROOM));
        for (int m = 0; m < ulysses->size; m++) {
            struct origin origin = {call->where.step, x.first + m, call->where.microbatch, call->unit};
            ledger_add_term(context_ledger(call, LEDGER_OWN_K), origin, 1, 1.0);
            ledger_add_term(context_ledger(call, LEDGER_OWN_V), origin, 1, 1.0);
        }
    }
    job.dq = context_rows_alloc(call, job.queries.count, job.heads, call->scratch);
    job.dk = context_rows_alloc(call, job.queries.count, job.kv_heads, call->scratch);
    job.dv = context_rows_alloc(call, job.queries.count, job.kv_heads, call->scratch);
    context_ring_backward(&job);
    from_heads(&x, call->dq, job.dq, true, storage, none, none, NULL, NULL);
    from_heads(&x, call->dk, job.dk, false, storage, none, none, context_ledger(call, LEDGER_DK_0), context_ledger(call, LEDGER_DK));
    from_heads(&x, call->dv, job.dv, false, storage, none, none, context_ledger(call, LEDGER_DV_0), context_ledger(call, LEDGER_DV));
    sinks_back(&x, &job);
    int32_t others = context_ledger_times(call, context_ledger(call, LEDGER_DK_0), ulysses->size, dk);
    others += context_ledger_times(call, context_ledger(call, LEDGER_DV_0), ulysses->size, dv);
    context_note_consumption(call, true, job.times_k, job.times_v, dk, dv, job.others + others);
}

bool context_heads_divide(const char *method, int parts, const struct context_shape *shape, char why[320])
{
    if (shape->heads % parts == 0 && shape->kv_heads % parts == 0) return true;
    snprintf(why, 320, "%s gives each of %d ranks as many heads: %d heads and %d key/value heads do not both divide by %d", method, parts, shape->heads,
             shape->kv_heads, parts);
    return false;
}
