/* operation: the messages and additions that algorithms are made of, and the frame around them. */
#include "collectives/communicator_state.h"

#include <math.h>
#include <string.h>
#include "sim/assertion.h"
#include "sim/trace.h"

const char *const collective_op_names[OP_COUNT] = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "gather", "barrier", "ring_shift", "send", "receive",
};

/* Tags of collectives lie above those of transfers. They carry the call number, so that messages of one
 * call never meet a receive of another unless a rank has lost count. */
enum { TAG_CALLS_MASK = 0xffffff };
static const uint32_t tag_collective = 0x80000000u;

/* ---- values ---- */

void values_round(void *data, size_t count, enum format storage, enum format wire)
{
    if (count == 0 || !wire_narrows(storage, wire))
        return;
    if (format_traits[wire].storage == storage) {
        format_round_array(wire, data, count);
        return;
    }
    for (size_t i = 0; i < count; i++)
        format_set(data, i, storage, format_round(wire, format_get(data, i, storage)));
}

/* A NaN on either side is the maximum, and of zeros +0 unless both are -0: the same bits in any order. */
#define DEFINE_REDUCE(type, name) \
    static void name(type *to, const type *from, size_t count, enum reduce_op reduce) \
    { \
        if (reduce != REDUCE_MAX) { \
            for (size_t i = 0; i < count; i++) \
                to[i] += from[i]; \
            return; \
        } \
        for (size_t i = 0; i < count; i++) { \
            type a = to[i], b = from[i]; \
            if (isnan(a) || isnan(b)) \
                to[i] = (type)NAN; \
            else if (a == 0 && b == 0) \
                to[i] = a + b; \
            else \
                to[i] = b > a ? b : a; \
        } \
    }
DEFINE_REDUCE(float, reduce_fp32)
DEFINE_REDUCE(double, reduce_fp64)

void part_reduce(struct operation *o, struct part *to, const struct part *from)
{
    ASSERT(to->count == from->count);
    if (o->storage == FORMAT_FP64)
        reduce_fp64(to->data, from->data, to->count, o->reduce);
    else
        reduce_fp32(to->data, from->data, to->count, o->reduce);
    values_round(to->data, to->count - to->uncounted, o->storage, o->wire);
    if (!to->own || !from->ledger)
        return;
    if (to->ledger != to->own) {
        ledger_clear(to->own);
        if (to->ledger)
            ledger_copy(to->own, to->ledger);
        to->ledger = to->own;
    }
    ledger_add(to->own, from->ledger);
}

void part_take(struct operation *o, struct part *to, const struct part *from)
{
    ASSERT(to->count == from->count);
    if (to->count > 0 && to->data != from->data)
        memcpy(to->data, from->data, to->count * format_storage_bytes(o->storage));
    if (!to->own)
        return;
    if (!from->ledger)
        ledger_clear(to->own);
    else if (from->ledger != to->own)
        ledger_copy(to->own, from->ledger);
    to->ledger = to->own;
}

/* ---- messages ---- */

void operation_send(struct operation *o, int to, const struct part *part)
{
    size_t accounted = traffic_bytes(part->count, part->uncounted, o->wire);
    struct parcel parcel = {
        .data = part->data, .bytes = part->count * format_storage_bytes(o->storage),
        .ledger = o->ledgers ? part->ledger : NULL, .accounted_bytes = accounted,
    };
    bool reduces = o->call.reduce >= 0; /* those double the contribution instead (operation_run) */
    int times = deviation_kind(o->due) == DEVIATION_DUPLICATE && !reduces ? 2 : 1;
    for (int i = 0; i < times; i++) {
        struct transfer *transfer =
            transport_send(o->rank, o->group->ranks[to], o->tag, &o->call, parcel, SEND_ASYNC);
        transport_wait(o->rank, transfer); /* asynchronous: does not park */
        traffic_add(o->c, o->traffic, accounted);
    }
}

struct transfer *operation_expect(struct operation *o, int from)
{
    return transport_receive(o->rank, o->group->ranks[from], o->tag, &o->call);
}

struct message *operation_arrive(struct operation *o, struct transfer *transfer, const struct part *like,
                                 struct part *ret_part)
{
    struct message *message = transport_wait(o->rank, transfer);
    size_t bytes = like->count * format_storage_bytes(o->storage);
    *ret_part = *like;
    ret_part->data = message->data;
    ret_part->own = o->ledgers ? &message->ledger : NULL;
    ret_part->ledger = ret_part->own;
    if (message->bytes < bytes) { /* what did not arrive reads as NaN */
        ret_part->data = arena_alloc(o->c->scratch, bytes);
        memory_poison(ret_part->data, bytes);
        if (message->bytes > 0)
            memcpy(ret_part->data, message->data, message->bytes);
    }
    if (!o->differs && (calls_differ(&o->call, &message->call, false) || message->bytes != bytes)) {
        o->differs = true; /* one note a call says enough */
        difference_note(o->c, &o->call, message, o->where, false);
    }
    return message;
}

struct message *operation_receive(struct operation *o, int from, const struct part *like, struct part *ret_part)
{
    return operation_arrive(o, operation_expect(o, from), like, ret_part);
}

void operation_release(struct operation *o, struct message *message)
{
    message_release(o->rank, message);
}

/* ---- the frame ---- */

/* The work space belongs to the communicator: a rank that a deadlock leaves parked in a call leaks none. */
static void operation_reserve(struct operation *o, int size)
{
    if (size <= o->capacity)
        return;
    size_t n = (size_t)size;
    o->parts = memory_realloc(o->parts, n * sizeof *o->parts);
    o->counts = memory_realloc(o->counts, n * sizeof *o->counts);
    o->transfers = memory_realloc(o->transfers, n * sizeof(struct transfer *));
    o->ledgers_own = memory_realloc(o->ledgers_own, n * sizeof *o->ledgers_own);
    for (int i = o->capacity; i < size; i++)
        ledger_init(&o->ledgers_own[i]);
    o->capacity = size;
}

struct operation *operation_begin(struct communicator *c, struct group *g, const struct comm *how,
                                  enum collective_op op, struct buffer shape, enum reduce_op reduce, int root)
{
    struct operation *o = &c->operation;
    ASSERT_MESSAGE(!o->busy, "%s while another call of this rank is under way", collective_op_names[op]);
    ASSERT(how->site && format_traits[shape.storage].storage == shape.storage);
    ASSERT(root < 0 || root < g->size);
    struct where where = how->where;
    where.rank = rank_id(c->rank);
    const struct armed *due = deviation_due(c, how->site, where, op, -1);
    struct group *group = deviation_group(c, due, g);
    bool reduces = op == OP_ALL_REDUCE || op == OP_REDUCE_SCATTER;
    const struct algorithm *algorithm = NULL;
    if (op != OP_RING_SHIFT) {
        algorithm = how->algorithm ? algorithm_find(op, how->algorithm) : c->chosen[op];
        ASSERT_MESSAGE(algorithm || !how->algorithm, "no algorithm %s for %s", how->algorithm,
                       collective_op_names[op]);
        if (!algorithm)
            algorithm = algorithm_find(op, NULL);
    }
    operation_reserve(o, group->size);
    o->c = c;
    o->rank = c->rank;
    o->group = group;
    o->where = where;
    o->site = how->site;
    o->due = due;
    o->op = op;
    o->storage = shape.storage;
    o->wire = deviation_wire(due, shape.wire);
    o->reduce = reduces ? deviation_reduce(due, reduce) : REDUCE_SUM;
    o->size = group->size;
    o->me = group->me;
    o->root = root < 0 ? -1 : deviation_root(due, root, group->size);
    o->shift = 0;
    o->ledgers = shape.ledger != NULL;
    o->busy = true;
    o->differs = false;
    o->uncounted = how->uncounted;
    o->algorithm = algorithm;
    o->mark = arena_mark(c->scratch);
    o->call = (struct call){
        .op = collective_op_names[op], .algorithm = algorithm ? algorithm->info.name : "",
        .purpose = how->site->name, .group = group->name, .group_id = group->id,
        .format = o->wire, .reduce = reduces ? (int)o->reduce : -1, .root = o->root,
    };
    return o;
}

size_t operation_counts(struct operation *o, size_t own, const size_t *counts, int counts_size)
{
    size_t sum = 0;
    for (int i = 0; i < o->size; i++) {
        /* Another group than the counts were made for (a deviation) takes them round robin. */
        o->counts[i] = i == o->me || !counts ? own : counts[i % counts_size];
        sum += o->counts[i];
    }
    return sum;
}

void operation_layout(struct operation *o, void *base, const struct ledger *ledger)
{
    size_t offset = 0;
    for (int i = 0; i < o->size; i++) {
        o->parts[i] = (struct part){
            .data = o->counts[i] ? values_at(base, offset, o->storage) : NULL,
            .count = o->counts[i], .uncounted = o->uncounted, .ledger = ledger,
            .own = o->ledgers ? &o->ledgers_own[i] : NULL,
        };
        offset += o->counts[i];
    }
}

void *operation_scratch(struct operation *o, size_t elements)
{
    size_t bytes = elements * format_storage_bytes(o->storage);
    void *data = arena_alloc(o->c->scratch, bytes ? bytes : 1);
    memory_poison(data, bytes);
    return data;
}

bool operation_enter(struct operation *o, size_t count)
{
    enum communication_deviation kind = deviation_kind(o->due);
    if (kind == DEVIATION_SKIP || kind == DEVIATION_DROP)
        return false; /* nothing is called, so nothing is logged */
    o->call.count = count;
    o->call.sequence = o->group->calls++;
    o->tag = tag_collective | (uint32_t)(o->call.sequence & TAG_CALLS_MASK);
    o->traffic = traffic_row(o->c, &o->call, true);
    call_log(o->c, o);
    trace_add(o->rank, TRACE_COLLECTIVE, o->call.purpose, -1, count * (size_t)format_traits[o->wire].bytes, o->where);
    return true;
}

/* A reduction's `duplicate`: the contribution goes in twice, numbers and ledger alike. */
static void contribute_twice(struct operation *o)
{
    for (int i = 0; i < o->size; i++) {
        struct part once = o->parts[i];
        once.data = operation_scratch(o, once.count);
        if (once.count > 0)
            memcpy(once.data, o->parts[i].data, once.count * format_storage_bytes(o->storage));
        part_reduce(o, &o->parts[i], &once);
    }
}

void operation_run(struct operation *o)
{
    bool reduces = o->call.reduce >= 0;
    if (reduces) {
        for (int i = 0; i < o->size; i++)
            values_round(o->parts[i].data, o->parts[i].count - o->parts[i].uncounted, o->storage, o->wire);
        if (deviation_kind(o->due) == DEVIATION_DUPLICATE)
            contribute_twice(o);
    }
    o->algorithm->run(o);
}

void operation_end(struct operation *o)
{
    arena_release(o->c->scratch, o->mark);
    o->busy = false;
}
