/* collectives: the operations as their callers see them, start and wait, and the registry of algorithms. */
#include "collectives/communicator_state.h"

#include <string.h>
#include "sim/assertion.h"

/* ---- registry ---- */

#define OP_all_reduce OP_ALL_REDUCE
#define OP_all_gather OP_ALL_GATHER
#define OP_reduce_scatter OP_REDUCE_SCATTER
#define OP_broadcast OP_BROADCAST
#define OP_gather OP_GATHER
#define OP_scatter OP_SCATTER
#define OP_reduce OP_REDUCE
#define OP_all_to_all OP_ALL_TO_ALL
#define OP_barrier OP_BARRIER

static const struct algorithm algorithms[] = {
#define ALGORITHM(op, name) {OP_##op, {#op, #name}, op##_##name, NULL},
#include "collectives/collectives.def"
#undef ALGORITHM
};
enum { ALGORITHM_COUNT = sizeof algorithms / sizeof *algorithms };

int collective_algorithm_count(void)
{
    return ALGORITHM_COUNT;
}

const struct collective_algorithm *collective_algorithm(int i)
{
    ASSERT(i >= 0 && i < ALGORITHM_COUNT);
    return &algorithms[i].info;
}

const struct algorithm *algorithm_find(enum collective_op op, const char *name)
{
    for (int i = 0; i < ALGORITHM_COUNT; i++)
        if (algorithms[i].op == op && (!name || strcmp(algorithms[i].info.name, name) == 0))
            return &algorithms[i];
    return NULL;
}

/* ---- start ---- */

struct collective { struct operation operation; }; /* the same object, under its callers' name */

/* shape: storage, wire and whether there are ledgers; a, b: whichever ledger there is says so. */
static struct buffer shape_of(struct buffer in, struct ledger *a, struct ledger *b)
{
    return (struct buffer){.storage = in.storage, .wire = in.wire, .ledger = a ? a : b};
}

void parts_uncounted(struct operation *o)
{
    size_t left = o->uncounted < o->total ? o->uncounted : o->total;
    for (int i = o->size - 1; i >= 0; i--) {
        o->parts[i].uncounted = left < o->counts[i] ? left : o->counts[i];
        left -= o->parts[i].uncounted;
    }
}

static void enter(struct operation *o)
{
    if (operation_enter(o, o->described) && !o->c->messages_only && o->size > 1 && !(o->algorithm && o->algorithm->context)) /* foreign code is called by the rank itself */
        meeting_post(o);
}

/* Buffers and counts are set: logs the call and takes its part in the meeting. */
static struct operation *start(struct operation *o, struct buffer out, struct buffer in, size_t count)
{
    ASSERT(in.storage == out.storage);
    o->in = in;
    o->out = out;
    o->described = count;
    rank_unwaited(o->rank, 1);
    struct operation *before = o->c->deferred;
    if (deviation_kind(o->due) == DEVIATION_SWAP_CALLS && !before) {
        o->c->deferred = o;
        return o;
    }
    enter(o);
    o->c->deferred = NULL;
    if (before)
        enter(before);
    return o;
}

/* What is not yet there shows. keep: elements from `kept` on that are the input's own place. */
static struct collective *poisoned(struct operation *o)
{
    size_t width = format_storage_bytes(o->storage), bytes = o->out.count * width;
    char *out = o->out.data, *in = o->in.data;
    if (!o->entered && o != o->c->deferred)
        return (struct collective *)o;
    hazard_posted(o);
    if (out && in && in >= out && in < out + bytes) { /* in place */
        size_t before = (size_t)(in - out), inside = o->in.count * width;
        memory_poison(out, before);
        if (before + inside < bytes)
            memory_poison(in + inside, bytes - before - inside);
    } else if (!(out && in && out >= in && out < in + o->in.count * width)) {
        memory_poison(out, bytes);
    }
    return (struct collective *)o;
}

/* A buffer that only the root has; elsewhere it may be anything and is not looked at. */
static struct buffer root_only(const struct group *g, int root, struct buffer its, struct buffer other)
{
    return g->me == root ? its : (struct buffer){.storage = other.storage, .wire = other.wire};
}

static struct operation *start_all_reduce(struct communicator *c, struct group *g, const struct comm *how,
                                          struct buffer out, struct buffer in, enum reduce_op op)
{
    ASSERT(in.count == out.count);
    struct operation *o = operation_begin(c, g, how, OP_ALL_REDUCE, shape_of(in, in.ledger, out.ledger), op, -1);
    o->total = deviation_count(o->due, in.count, how->uncounted);
    for (size_t i = 0, size = (size_t)o->size; i < size; i++)
        o->counts[i] = o->total / size + (i < o->total % size);
    return start(o, out, in, o->total);
}

static struct operation *start_reduce(struct communicator *c, struct group *g, const struct comm *how,
                                      struct buffer out, struct buffer in, enum reduce_op op, int root)
{
    ASSERT(root >= 0);
    struct operation *o = operation_begin(c, g, how, OP_REDUCE, shape_of(in, in.ledger, NULL), op, root);
    ASSERT(g->me != root || in.count == out.count);
    o->total = deviation_count(o->due, in.count, how->uncounted);
    return start(o, root_only(g, root, out, in), in, o->total);
}

static struct operation *start_all_gather(struct communicator *c, struct group *g, const struct comm *how,
                                          struct buffer out, struct buffer in, const size_t *counts)
{
    struct operation *o = operation_begin(c, g, how, OP_ALL_GATHER, shape_of(in, in.ledger, out.ledger), REDUCE_SUM, -1);
    ASSERT(!counts || counts[g->me] == in.count);
    operation_counts(o, o->source_counts, in.count, counts, g->size);
    o->total = operation_counts(o, o->counts, deviation_count(o->due, in.count, how->uncounted), counts, g->size);
    ASSERT(o->total == out.count || o->due);
    return start(o, out, in, o->total);
}

static struct operation *start_reduce_scatter(struct communicator *c, struct group *g, const struct comm *how,
                                              struct buffer out, struct buffer in, const size_t *counts,
                                              enum reduce_op op)
{
    struct operation *o = operation_begin(c, g, how, OP_REDUCE_SCATTER, shape_of(in, in.ledger, out.ledger), op, -1);
    ASSERT(!counts || counts[g->me] == out.count);
    operation_counts(o, o->source_counts, out.count, counts, g->size);
    o->total = operation_counts(o, o->counts, deviation_count(o->due, out.count, how->uncounted), counts, g->size);
    ASSERT(o->total == in.count || o->due);
    return start(o, out, in, o->total);
}

static struct operation *start_broadcast(struct communicator *c, struct group *g, const struct comm *how,
                                         struct buffer in_out, int root)
{
    struct operation *o = operation_begin(c, g, how, OP_BROADCAST, in_out, REDUCE_SUM, root);
    o->total = deviation_count(o->due, in_out.count, how->uncounted);
    return start(o, in_out, in_out, o->total);
}

static struct operation *start_gather(struct communicator *c, struct group *g, const struct comm *how,
                                      struct buffer out, struct buffer in, const size_t *counts, int root)
{
    ASSERT(root >= 0);
    struct operation *o = operation_begin(c, g, how, OP_GATHER, shape_of(in, in.ledger, NULL), REDUCE_SUM, root);
    ASSERT(!counts || counts[g->me] == in.count);
    operation_counts(o, o->source_counts, in.count, counts, g->size);
    o->total = operation_counts(o, o->counts, deviation_count(o->due, in.count, how->uncounted), counts, g->size);
    ASSERT(g->me != root || o->total == out.count || o->due);
    return start(o, root_only(g, root, out, in), in, o->total);
}

static struct operation *start_scatter(struct communicator *c, struct group *g, const struct comm *how,
                                       struct buffer out, struct buffer in, const size_t *counts, int root)
{
    ASSERT(root >= 0);
    struct operation *o = operation_begin(c, g, how, OP_SCATTER, shape_of(out, out.ledger, NULL), REDUCE_SUM, root);
    ASSERT(!counts || counts[g->me] == out.count);
    operation_counts(o, o->source_counts, out.count, counts, g->size);
    o->total = operation_counts(o, o->counts, deviation_count(o->due, out.count, how->uncounted), counts, g->size);
    ASSERT(g->me != root || o->total == in.count || o->due);
    return start(o, out, root_only(g, root, in, out), o->total);
}

static struct operation *start_all_to_all(struct communicator *c, struct group *g, const struct comm *how,
                                          struct buffer out, struct buffer in, const size_t *send_counts,
                                          const size_t *receive_counts)
{
    struct operation *o = operation_begin(c, g, how, OP_ALL_TO_ALL, shape_of(in, in.ledger, out.ledger), REDUCE_SUM, -1);
    ASSERT(!send_counts == !receive_counts);
    size_t even = in.count / (size_t)g->size;
    size_t sources = operation_counts(o, o->source_counts, send_counts ? send_counts[g->me] : even, send_counts, g->size);
    o->total = operation_counts(o, o->counts, send_counts ? receive_counts[g->me] : even, receive_counts, g->size);
    ASSERT((sources == in.count && o->total == out.count) || o->due);
    o->own_counts = send_counts != NULL;
    return start(o, out, in, send_counts ? 0 : o->total);
}

static struct operation *start_barrier(struct communicator *c, struct group *g, const struct comm *how)
{
    struct buffer nothing = {.storage = FORMAT_FP32, .wire = FORMAT_FP32};
    struct operation *o = operation_begin(c, g, how, OP_BARRIER, nothing, REDUCE_SUM, -1);
    return start(o, nothing, nothing, 0);
}

/* ---- wait ---- */

static void by_messages(struct operation *o)
{
    enum communication_deviation kind = deviation_kind(o->due);
    bool is_late = kind == DEVIATION_LATE || kind == DEVIATION_TORN;
    struct late *late = is_late ? late_before(o->out, o->site, o->where, kind == DEVIATION_TORN) : NULL;
    struct buffer in = o->in;
    double clock_s = operation_open(o);
    if ((kind == DEVIATION_REUSE_BUFFER || kind == DEVIATION_FREE_SOURCE) && o->op != OP_BROADCAST) {
        size_t bytes = in.count * format_storage_bytes(o->storage);
        o->in.data = operation_scratch(o, in.count);
        o->in.ledger = o->ledgers ? &o->c->nothing : NULL;
        if (kind == DEVIATION_REUSE_BUFFER)
            memset(o->in.data, 0, bytes ? bytes : 1);
    }
    hazard_taken(o);
    frame_run(o);
    operation_close(o, clock_s);
    if (kind == DEVIATION_ALIAS && o->entered && in.data != o->out.data) {
        values_copy(in.data, o->out.data, in.count < o->out.count ? in.count : o->out.count, o->storage);
        if (in.ledger && o->out.ledger)
            ledger_copy(in.ledger, o->out.ledger);
    }
    hazard_completed(o, in);
    if (late)
        late_hold(o->c, late);
}

static void finish(struct operation *o)
{
    ASSERT_MESSAGE(o->busy, "rank %d waits for a collective twice", rank_id(o->rank));
    late_complete(o->c);
    if (o->c->deferred == o) {
        o->c->deferred = NULL;
        enter(o);
    }
    if (!o->meets || meeting_wait(o->rank, &o->post) == MEETING_APART)
        by_messages(o);
    else
        hazard_completed(o, o->in);
    rank_unwaited(o->rank, -1);
    operation_end(o);
}

void collective_wait(struct communicator *c, struct collective *collective)
{
    ASSERT(collective->operation.c == c);
    finish(&collective->operation);
}

void all_reduce(struct communicator *c, struct group *g, const struct comm *how, struct buffer in_out,
                enum reduce_op op)
{
    finish(start_all_reduce(c, g, how, in_out, in_out, op));
}

void all_reduce_to(struct communicator *c, struct group *g, const struct comm *how, struct buffer out,
                   struct buffer in, enum reduce_op op)
{
    finish(start_all_reduce(c, g, how, out, in, op));
}

void reduce_to(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in,
            enum reduce_op op, int root)
{
    finish(start_reduce(c, g, how, out, in, op, root));
}

void all_gather(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in,
                const size_t *counts)
{
    finish(start_all_gather(c, g, how, out, in, counts));
}

void reduce_scatter(struct communicator *c, struct group *g, const struct comm *how, struct buffer out,
                    struct buffer in, const size_t *counts, enum reduce_op op)
{
    finish(start_reduce_scatter(c, g, how, out, in, counts, op));
}

void broadcast(struct communicator *c, struct group *g, const struct comm *how, struct buffer in_out, int root)
{
    finish(start_broadcast(c, g, how, in_out, root));
}

void gather(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in,
            const size_t *counts, int root)
{
    finish(start_gather(c, g, how, out, in, counts, root));
}

void scatter(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in,
             const size_t *counts, int root)
{
    finish(start_scatter(c, g, how, out, in, counts, root));
}

void all_to_all(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in)
{
    finish(start_all_to_all(c, g, how, out, in, NULL, NULL));
}

void all_to_all_uneven(struct communicator *c, struct group *g, const struct comm *how, struct buffer out,
                       struct buffer in, const size_t *send_counts, const size_t *receive_counts)
{
    finish(start_all_to_all(c, g, how, out, in, send_counts, receive_counts));
}

void barrier(struct communicator *c, struct group *g, const struct comm *how)
{
    finish(start_barrier(c, g, how));
}

struct collective *all_reduce_start(struct communicator *c, struct group *g, const struct comm *how,
                                    struct buffer out, struct buffer in, enum reduce_op op)
{
    return poisoned(start_all_reduce(c, g, how, out, in, op));
}

struct collective *reduce_scatter_start(struct communicator *c, struct group *g, const struct comm *how,
                                        struct buffer out, struct buffer in, const size_t *counts, enum reduce_op op)
{
    return poisoned(start_reduce_scatter(c, g, how, out, in, counts, op));
}

struct collective *all_gather_start(struct communicator *c, struct group *g, const struct comm *how,
                                    struct buffer out, struct buffer in, const size_t *counts)
{
    return poisoned(start_all_gather(c, g, how, out, in, counts));
}

struct collective *all_to_all_start(struct communicator *c, struct group *g, const struct comm *how,
                                    struct buffer out, struct buffer in, const size_t *send_counts,
                                    const size_t *receive_counts)
{
    return poisoned(start_all_to_all(c, g, how, out, in, send_counts, receive_counts));
}
