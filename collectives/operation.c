/* operation: the messages and additions that algorithms are made of, and the frame around them. */
#include "collectives/communicator_state.h"

#include <stdlib.h>
#include <string.h>
#include "collectives/pattern.h"
#include "sim/assertion.h"
#include "sim/trace.h"

const char *const collective_op_names[OP_COUNT] = {
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "gather", "scatter", "reduce", "all_to_all", "barrier",
    "ring_shift", "send", "receive",
};

/* Tags of collectives lie above those of transfers. They carry the call number, so that messages of one
 * call never meet a receive of another unless a rank has lost count. */
enum { TAG_CALLS_MASK = 0xffffff };
static const uint32_t tag_collective = 0x80000000u;

/* ---- parts ---- */

void part_round(const struct operation *o, const struct part *part, enum format wire)
{
    if (part->count > part->uncounted)
        values_round(part->data, part->count - part->uncounted, o->storage, wire);
}

void part_reduce(struct operation *o, struct part *to, const struct part *from)
{
    ASSERT(to->count == from->count);
    if (o->recording) {
        recording_reduce(o->recording, to->data, from->data, to->count);
        return;
    }
    values_reduce(to->data, to->data, from->data, to->count, o->storage, o->reduce);
    part_round(o, to, o->hop);
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
    values_copy(to->data, from->data, to->count, o->storage);
    if (!to->own)
        return;
    if (!from->ledger)
        ledger_clear(to->own);
    else if (from->ledger != to->own)
        ledger_copy(to->own, from->ledger);
    to->ledger = to->own;
}

/* Parts lie one after the other. Their ledgers differ only where a fault made them so. */
struct part operation_range(struct operation *o, int first, int count)
{
    ASSERT(first >= 0 && count >= 1 && first + count <= o->size);
    struct part range = {.ledger = o->parts[first].ledger, .own = o->ledgers ? &o->ledgers_own[first] : NULL};
    struct ledger *common = NULL;
    for (int i = first; i < first + count; i++) {
        const struct part *part = &o->parts[i];
        range.data = range.data ? range.data : part->data;
        range.count += part->count;
        range.uncounted += part->uncounted;
        if (!part->ledger || !range.ledger || part->ledger == range.ledger)
            continue;
        if (!common) {
            common = &o->c->ledger;
            ledger_copy(common, range.ledger);
            range.ledger = common;
        }
        ledger_common(common, part->ledger);
    }
    return range;
}

void operation_range_done(struct operation *o, int first, int count, const struct part *range)
{
    for (int i = first; i < first + count; i++)
        o->parts[i].ledger = range->ledger;
}

/* ---- messages ---- */

void operation_send(struct operation *o, int to, const struct part *part)
{
    if (o->recording) {
        recording_send(o->recording, to, part->data, part->count);
        return;
    }
    size_t width = format_storage_bytes(o->storage), accounted = traffic_bytes(part->count, part->uncounted, o->wire);
    struct parcel parcel = {
        .data = part->data, .bytes = part->count * width, .ledger = o->ledgers ? part->ledger : NULL,
        .tail_bytes = (part->uncounted < part->count ? part->uncounted : part->count) * width,
        .accounted_bytes = accounted,
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
    if (o->recording)
        return recording_expect(o->recording, from);
    return transport_receive(o->rank, o->group->ranks[from], o->tag, &o->call);
}

struct message *operation_arrive(struct operation *o, struct transfer *transfer, const struct part *like,
                                 struct part *ret_part)
{
    *ret_part = *like;
    if (o->recording) {
        ret_part->data = recording_arrive(o->recording, transfer, like->count);
        return NULL;
    }
    struct message *message = transport_wait(o->rank, transfer);
    size_t width = format_storage_bytes(o->storage), bytes = like->count * width;
    bool fits = message->bytes == bytes;
    ret_part->data = message->data;
    if (!fits) {
        ret_part->data = operation_scratch(o, like->count);
        message_copy(ret_part->data, bytes, like->uncounted * width, message);
    }
    if (o->due)
        deviation_arrived(o, message->source, ret_part);
    ret_part->own = o->ledgers ? &message->ledger : NULL;
    ret_part->ledger = ret_part->own;
    if (!o->differs && (calls_differ(&o->call, &message->call, false) || !fits)) {
        struct call mine = o->call;
        struct message theirs = *message;
        if (o->own_counts && mine.count == theirs.call.count) {
            mine.count = like->count;
            theirs.call.count = message->bytes / width;
        }
        o->differs = true; /* one note a call says enough */
        difference_note(o->c, &mine, &theirs, o->where, false);
    }
    return message;
}

struct message *operation_receive(struct operation *o, int from, const struct part *like, struct part *ret_part)
{
    return operation_arrive(o, operation_expect(o, from), like, ret_part);
}

void operation_release(struct operation *o, struct message *message)
{
    if (!o->recording)
        message_release(o->rank, message);
}

/* ---- around an algorithm ---- */

/* The work space belongs to the communicator: a rank that a deadlock leaves parked in a call leaks none. */
void operation_reserve(struct operation *o, int size)
{
    if (size <= o->capacity)
        return;
    size_t n = (size_t)size;
    o->parts = memory_realloc(o->parts, n * sizeof *o->parts);
    o->sources = memory_realloc(o->sources, n * sizeof *o->sources);
    o->counts = memory_realloc(o->counts, n * sizeof *o->counts);
    o->source_counts = memory_realloc(o->source_counts, n * sizeof *o->source_counts);
    o->transfers = memory_realloc(o->transfers, n * sizeof(struct transfer *));
    o->ledgers_own = memory_realloc(o->ledgers_own, n * sizeof *o->ledgers_own);
    for (int i = o->capacity; i < size; i++)
        ledger_init(&o->ledgers_own[i]);
    o->capacity = size;
}

void operations_free(struct operation *o)
{
    while (o) {
        struct operation *next = o->next;
        for (int i = 0; i < o->capacity; i++)
            ledger_done(&o->ledgers_own[i]);
        free(o->parts);
        free(o->sources);
        free(o->counts);
        free(o->source_counts);
        free(o->transfers);
        free(o->ledgers_own);
        free(o);
        o = next;
    }
}

static struct operation *operation_free(struct communicator *c)
{
    struct operation **link = &c->operations;
    while (*link && (*link)->busy)
        link = &(*link)->next;
    if (!*link)
        *link = memory_zalloc(sizeof **link);
    return *link;
}

static const struct algorithm *algorithm_of(struct communicator *c, enum collective_op op, const char *name)
{
    if (op == OP_RING_SHIFT)
        return NULL;
    const struct algorithm *algorithm = name ? algorithm_known(c, op, name) : c->chosen[op];
    ASSERT_MESSAGE(algorithm || !name, "no algorithm %s for %s", name, collective_op_names[op]);
    return algorithm ? algorithm : algorithm_find(op, NULL);
}

struct operation *operation_begin(struct communicator *c, struct group *g, const struct comm *how,
                                  enum collective_op op, struct buffer shape, enum reduce_op reduce, int root)
{
    ASSERT(how->site && format_traits[shape.storage].storage == shape.storage);
    ASSERT(root < 0 || root < g->size);
    late_complete(c);
    struct where where = how->where;
    where.rank = rank_id(c->rank);
    const struct armed *due = deviation_due(c, how->site, where, op, -1, g);
    struct group *group = deviation_group(c, due, g);
    bool reduces = op == OP_ALL_REDUCE || op == OP_REDUCE_SCATTER || op == OP_REDUCE;
    struct operation *o = operation_free(c);
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
    o->hop = deviation_hop(due, o->wire);
    o->reduce = reduces ? deviation_reduce(due, reduce) : REDUCE_SUM;
    o->size = group->size;
    o->me = group->me;
    o->root = root < 0 ? -1 : deviation_root(due, root, group->size);
    o->ledgers = shape.ledger != NULL;
    o->busy = true;
    o->entered = o->meets = o->differs = o->own_counts = o->asynchronous = o->hazardous = false;
    o->uncounted = how->uncounted;
    o->total = 0;
    o->algorithm = algorithm_of(c, op, how->algorithm);
    o->started_s = rank_time_s(c->rank);
    o->call = (struct call){
        .op = collective_op_names[op], .algorithm = o->algorithm ? o->algorithm->info.name : "",
        .purpose = how->site->name, .group = group->name, .group_id = group->id,
        .format = o->wire, .reduce = reduces ? (int)o->reduce : -1, .root = o->root,
    };
    return o;
}

size_t operation_counts(const struct operation *o, size_t *counts, size_t own, const size_t *given, int given_size)
{
    size_t sum = 0;
    for (int i = 0; i < o->size; i++) {
        /* Another group than the counts were made for (a deviation) takes them round robin. */
        counts[i] = i == o->me || !given ? own : given[i % given_size];
        sum += counts[i];
    }
    return sum;
}

void operation_layout(struct operation *o, struct part *parts, const size_t *counts, void *base,
                      const struct ledger *ledger)
{
    size_t offset = 0;
    for (int i = 0; i < o->size; i++) {
        parts[i] = (struct part){
            .data = counts[i] && base ? values_at(base, offset, o->storage) : NULL,
            .count = counts[i], .uncounted = o->uncounted, .ledger = ledger,
            .own = o->ledgers ? &o->ledgers_own[i] : NULL,
        };
        offset += counts[i];
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
    o->entered = true;
    o->call.count = count;
    o->call.sequence = o->group->calls++;
    o->tag = tag_collective | (uint32_t)(o->call.sequence & TAG_CALLS_MASK);
    o->traffic = traffic_row(o->c, &o->call, true);
    call_log(o->c, o);
    trace_add(o->rank, TRACE_COLLECTIVE, o->call.purpose, -1, count * (size_t)format_traits[o->wire].bytes, o->where);
    return true;
}

double operation_open(struct operation *o)
{
    o->mark = arena_mark(o->c->scratch);
    return rank_clock_set(o->rank, o->started_s);
}

void operation_close(struct operation *o, double clock_s)
{
    arena_release(o->c->scratch, o->mark);
    if (clock_s > rank_time_s(o->rank))
        rank_clock_set(o->rank, clock_s);
}

void operation_run(struct operation *o)
{
    if (o->call.reduce >= 0) {
        int parts = o->op == OP_REDUCE ? 1 : o->size;
        for (int i = 0; i < parts; i++)
            part_round(o, &o->parts[i], o->wire);
        for (int i = 0; i < parts && o->due; i++)
            deviation_contribution(o, &o->parts[i]);
    }
    o->algorithm->run(o);
}

void operation_end(struct operation *o)
{
    o->busy = false;
}
