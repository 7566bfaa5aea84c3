/* ring: blocks of keys and values go round, from member r to member r + 1; queries stay.
 *
 * At step s member r has the block of member r - s (modulo P), and merges what its queries see in it. Four members:
 *
 *   forward         member 0    member 1    member 2    member 3
 *   step 0          b0          b1          b2          b3         own
 *   step 1          b3          b0          b1          b2
 *   step 2          b2          b3          b0          b1
 *   step 3          b1          b2          b3          b0         P - 1 = 3 hops of K and of V
 *
 *   backward        the same blocks; g_i, the gradient of block i's keys and values, is begun by its owner and follows the block,
 *                   one hop behind: what member r has of its block's gradient from those before plus its own part goes on to r + 1
 *   after step 0    g0          g1          g2          g3         begun by the owner
 *   after step 3    g1          g2          g3          g0         complete, on the member in front of the owner
 *   last hop        g0          g1          g2          g3         home: K, V P - 1 hops, dK, dV P hops
 *
 *   reversed        the other way round, from r to r - 1, beginning with the block that came last (Transformer Engine):
 *   step 0          b1          b2          b3          b0         after one hop of K and V; the part made here begins the gradient
 *   step 1          b2          b3          b0          b1
 *   step 2          b3          b0          b1          b2
 *   step 3          b0          b1          b2          b3         the own block, which is here; K, V P - 1 hops, dK, dV P - 1 hops
 *
 * Hops of sites: cp.skip_block and its like count how many places the block came over (r - owner, modulo P), in every order;
 * cp.kv_hop and cp.dkv_hop count hops from 1.
 *
 * A block that none of the member's queries may see is not computed; it goes round all the same. With overlap the next block's
 * hop is started before this one is computed, else after. K and V are messages of their own, in the activation format; dK and dV
 * too, in storage. A block without rows is a message without elements.
 * Joint keys come with the own block. Order of sums: blocks as they come (linear) or two by two (tree); a gradient of keys from
 * its owner on along the ring (reversed: from the member behind the owner backwards to the owner).
 *
 * Cost a member, e elements a block: forward 2 (P - 1) messages, 2 (P - 1) e elements; backward 2 (P - 1) of keys and values and 2 P
 * (reversed: 2 (P - 1)) of gradients. A block may be smaller or larger by a row than the next.
 * Sources: Liu et al. 2023 (Ring Attention, arXiv 2310.01889); zhuzilin/ring-flash-attention; TransformerEngine context_parallel.py. */
#include "model/context/job.h"

#include <string.h>

#include "sim/assertion.h"

enum { TAG_K, TAG_V, TAG_DK, TAG_DV, TAG_OTHER_CHANNEL = 8 };

/* Two tensors that go together: keys and values, or their gradients. */
struct pair { struct tensor t[2]; struct ledger *ledger[2]; };
struct flight { struct comm how; struct transfer *sends[2], *receives[2]; struct buffer in[2]; bool busy; };

struct ring {
    struct context_job *job;
    struct communicator *communicator;
    struct pair own, room[2], grad_room[2];
    int64_t most;                          /* rows of the largest block */
    int way;                               /* 1: to the next member; -1 */
};

static int member(const struct ring *ring, int offset)
{
    return ((ring->job->me + offset) % ring->job->size + ring->job->size) % ring->job->size;
}

/* ---- hops ---- */

static uint32_t tag_of(const struct ring *ring, uint32_t stream, int hop, bool sends)
{
    bool one = context_decides(ring->job->call, &site_cp_order, hop, true), even = ring->job->me % 2 == 0;
    return one || even == sends ? stream : stream + TAG_OTHER_CHANNEL;
}

static void start(struct ring *ring, struct flight *f, const struct site *site, int hop, int way, uint32_t stream, enum format wire,
                  const struct pair *out, const struct pair *in)
{
    struct context_job *job = ring->job;
    *f = (struct flight){.how = {.site = site, .where = context_where(job->call, hop)}, .busy = true};
    uint32_t sends = tag_of(ring, 0, hop, true), receives = tag_of(ring, 0, hop, false);
    for (uint32_t i = 0; i < 2; i++) {
        memory_poison(in->t[i].data, (size_t)tensor_bytes(in->t[i]));
        if (in->ledger[i]) ledger_clear(in->ledger[i]);
        f->in[i] = context_buffer(in->t[i], wire, in->ledger[i]);
        f->receives[i] = receive_start(ring->communicator, job->group, &f->how, f->in[i], member(ring, -way), receives + stream + i);
    }
    bool swapped = order_site(job->call->plan, site, f->how.where); /* values sent where keys are expected */
    for (uint32_t i = 0; i < 2; i++)
        f->sends[i] = send_start(ring->communicator, job->group, &f->how, context_buffer(out->t[i], wire, out->ledger[i]), member(ring, way),
                                 sends + stream + (swapped ? 1 - i : i), SEND_ASYNC);
}

static void finish(struct ring *ring, struct flight *f)
{
    for (int i = 0; i < 2 && f->busy; i++) send_wait(ring->communicator, f->sends[i]);
    for (int i = 0; i < 2 && f->busy; i++) {
        receive_wait(ring->communicator, f->receives[i], &f->how, f->in[i]);
        communicator_reads(ring->communicator, f->in[i].data, f->in[i].count * format_storage_bytes(f->in[i].storage), &site_cp_skip_block, f->how.where);
    }
    f->busy = false;
}

/* ---- blocks ---- */

static struct pair pair_alloc(const struct ring *ring, enum context_ledger first)
{
    const struct context_call *call = ring->job->call;
    struct arena *arena = call->plan && call->kept ? call->kept : call->scratch; /* what is late is put there later */
    struct pair pair;
    for (int i = 0; i < 2; i++) {
        pair.t[i] = context_rows_alloc(call, ring->most, ring->job->kv_heads, arena);
        memory_poison(pair.t[i].data, (size_t)tensor_bytes(pair.t[i]));
        pair.ledger[i] = context_ledger(call, (enum context_ledger)((int)first + i));
    }
    return pair;
}

/* The pair's memory for a block of so many rows. */
static struct pair of_rows(struct pair pair, int64_t rows)
{
    for (int i = 0; i < 2; i++) pair.t[i] = tensor_4d(pair.t[i].data, pair.t[i].storage, pair.t[i].shape[0], rows, pair.t[i].shape[2], pair.t[i].shape[3]);
    return pair;
}

static struct ring ring_of(struct context_job *job, bool backward)
{
    struct context_call *call = job->call;
    struct ring ring = {.job = job, .communicator = call->cp->communicator, .way = backward && call->cp->reversed ? -1 : 1};
    for (int c = 0; c < job->size; c++) ring.most = job->blocks[c].count > ring.most ? job->blocks[c].count : ring.most;
    ring.own.t[0] = context_rows_take(call, job->k, job_own_first(job), job->blocks[job->me].count);
    ring.own.t[1] = context_rows_take(call, job->v, job_own_first(job), job->blocks[job->me].count);
    ring.own.ledger[0] = context_ledger(call, LEDGER_OWN_K);
    ring.own.ledger[1] = context_ledger(call, LEDGER_OWN_V);
    if (job->size == 1) return ring;
    ring.room[0] = pair_alloc(&ring, LEDGER_K_0);
    ring.room[1] = pair_alloc(&ring, LEDGER_K_1);
    if (!backward) return ring;
    ring.grad_room[0] = pair_alloc(&ring, LEDGER_DK_0);
    ring.grad_room[1] = pair_alloc(&ring, LEDGER_DK_1);
    return ring;
}

/* Its keys and values with the joint ones. */
static struct context_block with_joint(const struct ring *ring, struct context_block block)
{
    const struct context_job *job = ring->job;
    const struct context_call *call = job->call;
    struct context_rows rows = context_with_joint(call, &block.rows, &job->joint);
    int64_t own = block.rows.count, joint = job->joint.count;
    bool front = call->joint_place == JOINT_FRONT;
    struct tensor *to[2] = {&block.k, &block.v}, all[2] = {job->k, job->v};
    for (int i = 0; i < 2; i++) {
        struct tensor t = context_rows_alloc(call, own + joint, job->kv_heads, call->scratch);
        context_rows_put(t, front ? joint : 0, *to[i]);
        context_rows_put(t, front ? 0 : own, context_rows_take(call, all[i], job_joint_first(job), joint));
        *to[i] = t;
    }
    block.rows = rows;
    return block;
}

/* The pair as the block of member `owner`. */
static struct context_block block_of(const struct ring *ring, const struct pair *pair, int owner, bool *ret_joint)
{
    const struct context_job *job = ring->job;
    const struct context_call *call = job->call;
    struct context_block block = {.rows = job->blocks[owner], .k = pair->t[0], .v = pair->t[1], .k_ledger = pair->ledger[0], .v_ledger = pair->ledger[1],
                                  .hop = (job->me - owner + job->size) % job->size};
    if (block.hop > 0 && !context_decides(call, &site_cp_unpack, block.hop, true)) { /* as many rows as there are queries */
        int64_t rows = job->blocks[job->me].count;
        struct pair as = of_rows(*pair, rows);
        block.rows = context_rows_as(call, &block.rows, rows);
        block.k = as.t[0];
        block.v = as.t[1];
    }
    *ret_joint = false;
    if (job->joint.count == 0) return block;
    bool first = job->size == 1 || context_decides(call, &site_cp_joint_step, block.hop, true);
    bool once = job->size == 1 || context_decides(call, &site_cp_joint_once, block.hop, true);
    *ret_joint = !once || block.hop == (first ? 0 : job->size - 1);
    return block;
}

/* With the joint rows where they come with it. Whether another's block is computed is decided by its own rows alone. */
static bool joint_or_not(const struct ring *ring, struct context_block *block, bool joint)
{
    bool computed = !joint || block->hop == 0 || context_sees(ring->job, &block->rows, ring->job->call->causal);
    if (joint) *block = with_joint(ring, *block);
    return computed;
}

/* ---- forward ---- */

void context_ring_forward(struct context_job *job)
{
    struct context_call *call = job->call;
    bool rotates = job->size > 1 && context_decides(call, &site_cp_rotate, -1, true), overlap = call->cp->overlap, joint;
    int steps = rotates ? job->size : 1;
    struct ring ring = ring_of(job, false);
    struct pair here = ring.own;
    struct attending *attending = context_attend_begin(job);
    for (int s = 0; s < steps; s++) {
        struct flight flight = {.busy = false};
        struct pair next = here, sent = here;
        bool last = s + 1 == steps;
        if (!last) {
            next = of_rows(ring.room[s % 2], job->blocks[member(&ring, -(s + 1))].count);
            if (!context_decides(call, &site_cp_forward_received, s + 1, true)) sent = ring.own;
        }
        if (!last && overlap) start(&ring, &flight, &site_cp_kv_hop, s + 1, ring.way, TAG_K, call->activation, &sent, &next);
        struct context_block block = block_of(&ring, &here, member(&ring, -s), &joint);
        if (joint_or_not(&ring, &block, joint)) context_attend(attending, &block);
        if (!last && !overlap) start(&ring, &flight, &site_cp_kv_hop, s + 1, ring.way, TAG_K, call->activation, &sent, &next);
        finish(&ring, &flight);
        here = next;
    }
    context_attend_end(attending);
}

/* ---- backward ---- */

static void pair_add(const struct ring *ring, struct pair to, struct pair part)
{
    for (int i = 0; i < 2; i++) {
        int64_t count = tensor_count(to.t[i]) < tensor_count(part.t[i]) ? tensor_count(to.t[i]) : tensor_count(part.t[i]);
        ring->job->call->ops->vector_add(to.t[i].data, to.t[i].data, part.t[i].data, (size_t)count);
    }
}

static void ledgers_add(const struct ring *ring, struct pair to, bool added)
{
    const struct ledger *queries = context_ledger(ring->job->call, LEDGER_Q);
    for (int i = 0; i < 2 && added && queries; i++) ledger_add(to.ledger[i], queries);
}

/* The part made here of a block's gradient, on block `owner`'s rows. */
static struct pair part_of(struct ring *ring, const struct pair *here, int owner, bool *ret_added)
{
    struct context_job *job = ring->job;
    struct context_call *call = job->call;
    bool joint, computed;
    struct context_block block = block_of(ring, here, owner, &joint);
    int64_t taken = block.rows.count, due = job->blocks[owner].count;
    struct pair part = {.ledger = {context_ledger(call, LEDGER_DK), context_ledger(call, LEDGER_DV)}};
    for (int i = 0; i < 2; i++) {
        part.t[i] = context_rows_alloc(call, taken > due ? taken : due, job->kv_heads, call->scratch);
        if (tensor_count(part.t[i]) > 0) memset(part.t[i].data, 0, (size_t)tensor_bytes(part.t[i]));
        if (part.ledger[i]) ledger_clear(part.ledger[i]);
    }
    part = of_rows(part, taken);
    computed = joint_or_not(ring, &block, joint);
    *ret_added = computed && context_gradient(job, &block, joint, part.t[0], part.t[1]);
    return of_rows(part, due);
}

static void keep_home(struct ring *ring, struct pair gradient)
{
    struct context_job *job = ring->job;
    struct tensor to[2] = {job->dk, job->dv};
    int64_t own = job->blocks[job->me].count;
    for (int i = 0; i < 2; i++) {
        int64_t rows = gradient.t[i].shape[1] < own ? gradient.t[i].shape[1] : own;
        context_rows_put(to[i], job_own_first(job), context_rows_take(job->call, gradient.t[i], 0, rows));
        struct ledger *ledger = context_ledger(job->call, i == 0 ? LEDGER_DK : LEDGER_DV);
        if (ledger && ledger != gradient.ledger[i]) ledger_copy(ledger, gradient.ledger[i]);
    }
}

/* What arrived by a hop of gradients: keys' first. */
static struct pair unpacked(const struct ring *ring, struct pair arrived, int hop)
{
    if (context_decides(ring->job->call, &site_cp_grad_unpack, hop, true)) return arrived;
    return (struct pair){{arrived.t[1], arrived.t[0]}, {arrived.ledger[1], arrived.ledger[0]}};
}

/* Whose block it is at step j. */
static int owner_at(const struct ring *ring, int j)
{
    return ring->way > 0 ? member(ring, -j) : member(ring, 1 + j);
}

/* One block after the other, the gradients one hop behind. */
static void turn(struct ring *ring)
{
    struct context_job *job = ring->job;
    struct context_call *call = job->call;
    bool reversed = ring->way < 0, home = context_decides(call, &site_cp_dkv_home, -1, true), overlap = call->cp->overlap;
    int size = job->size, hops = (reversed ? size - 1 : size) - !home;
    struct flight flight = {.busy = false}, gradients = {.busy = false};
    struct pair here = ring->own, gradient = {.t = {{.data = NULL}}};
    if (reversed) { /* the block that came last comes again, over one hop the other way */
        here = of_rows(ring->room[1], job->blocks[owner_at(ring, 0)].count);
        start(ring, &flight, &site_cp_kv_hop, 1, ring->way, TAG_K, call->activation, &ring->own, &here);
        finish(ring, &flight);
    }
    for (int j = 0; j < size; j++) {
        struct arena_mark mark = arena_mark(call->scratch);
        bool moves = reversed ? j + 2 < size : j + 1 < size, added;
        struct pair next = reversed && j + 2 == size ? ring->own : here, sent = here;
        if (moves) {
            int hop = reversed ? j + 2 : j + 1;
            next = of_rows(ring->room[j % 2], job->blocks[owner_at(ring, j + 1)].count);
            if (!context_decides(call, &site_cp_forward_received, hop, true)) sent = ring->own;
            if (overlap) start(ring, &flight, &site_cp_kv_hop, hop, ring->way, TAG_K, call->activation, &sent, &next);
        }
        struct pair part = part_of(ring, &here, owner_at(ring, j), &added);
        if (moves && !overlap) start(ring, &flight, &site_cp_kv_hop, reversed ? j + 2 : j + 1, ring->way, TAG_K, call->activation, &sent, &next);
        if (gradients.busy) {
            finish(ring, &gradients);
            gradient = unpacked(ring, gradient, j);
            pair_add(ring, gradient, part);
            ledgers_add(ring, gradient, added);
        } else {
            gradient = part;
            ledgers_add(ring, gradient, added);
        }
        if (j < hops) {
            struct pair arrives = of_rows(ring->grad_room[j % 2], job->blocks[reversed || j + 1 < size ? owner_at(ring, j + 1) : job->me].count);
            int way = context_decides(call, &site_cp_dkv_direction, j + 1, true) ? ring->way : -ring->way;
            start(ring, &gradients, &site_cp_dkv_hop, j + 1, way, TAG_DK, call->ops->storage, &gradient, &arrives);
            gradient = arrives;
        } else {
            keep_home(ring, gradient);
        }
        finish(ring, &flight);
        here = next;
        arena_release(call->scratch, mark);
    }
    if (gradients.busy) { /* the last hop, home */
        finish(ring, &gradients);
        keep_home(ring, unpacked(ring, gradient, size));
    }
}

void context_ring_backward(struct context_job *job)
{
    struct context_call *call = job->call;
    struct ring ring = ring_of(job, true);
    context_gradient_begin(job);
    if (job->size > 1 && context_decides(call, &site_cp_rotate, -1, true)) {
        turn(&ring);
        return;
    }
    bool added;
    struct pair part = part_of(&ring, &ring.own, job->me, &added);
    ledgers_add(&ring, part, added);
    keep_home(&ring, part);
}

/* ---- the method ---- */

static struct context_job job_of(struct context_call *call)
{
    struct context_rows *blocks = context_blocks(call);
    struct context_job job = context_job_of(call, blocks, blocks[call->cp->group->me]);
    job.group = call->cp->group;
    job.size = job.group->size;
    job.me = job.group->me;
    job.ring = job.size > 1;
    context_ledger_of(call, context_ledger(call, LEDGER_Q), job.me);
    context_ledger_of(call, context_ledger(call, LEDGER_OWN_K), job.me);
    context_ledger_of(call, context_ledger(call, LEDGER_OWN_V), job.me);
    return job;
}

static void forward(struct context_call *call)
{
    struct context_job job = job_of(call);
    context_ring_forward(&job);
    context_note_consumption(call, false, job.times_k, job.times_v, NULL, NULL, job.others);
}

static void backward(struct context_call *call)
{
    struct context_job job = job_of(call);
    int32_t *dk = arena_zalloc(call->scratch, (size_t)job.size * sizeof *dk), *dv = arena_zalloc(call->scratch, (size_t)job.size * sizeof *dv);
    context_ring_backward(&job);
    int32_t others = context_ledger_times(call, context_ledger(call, LEDGER_DK), 1, dk);
    others += context_ledger_times(call, context_ledger(call, LEDGER_DV), 1, dv);
    context_note_consumption(call, true, job.times_k, job.times_v, dk, dv, job.others + others);
}

static bool allows(const struct context_shape *shape, char why[320])
{
    (void)shape, (void)why;
    return true;
}

const struct context_method context_method_ring = {"ring", allows, forward, backward};
