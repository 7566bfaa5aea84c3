/* send, receive: point to point between two members of a group, started and waited for separately.
 *
 * A transfer is no collective: it is not in the log of calls and takes no number there. The receiver
 * compares both sides' count and format (match.h). The payload is rounded to the wire's format in a copy,
 * so the sender's buffer stays as it is. SEND_ASYNC completes at once; SEND_SYNC when the receive was
 * posted.
 * Cost: one message. */
#include "collectives/communicator_state.h"

#include <string.h>
#include "sim/assertion.h"
#include "sim/trace.h"

static const uint32_t tag_limit = 0x80000000u; /* above lie the collectives' */

void transfer_seen(struct communicator *c, const struct call *call)
{
    for (int i = 0; i < c->kinds_count; i++) {
        struct transfer_kind *kind = &c->kinds[i];
        if (kind->count == call->count && kind->format == call->format && strcmp(kind->purpose, call->purpose) == 0) {
            kind->times++;
            return;
        }
    }
    GROW(c->kinds, c->kinds_count, c->kinds_capacity);
    c->kinds[c->kinds_count++] = (struct transfer_kind){call->purpose, call->count, call->format, 1};
}

static struct call transfer_call(enum collective_op op, struct group *g, const struct comm *how, size_t count,
                                 enum format wire)
{
    return (struct call){
        .op = collective_op_names[op], .algorithm = "", .purpose = how->site->name, .group = g->name,
        .group_id = g->id, .sequence = ((struct group_entry *)g)->transfers++, .count = count, .format = wire,
        .reduce = -1, .root = -1,
    };
}

/* What leaves: a copy where anything changes it. The copy lies in c->scratch, its ledger in c->ledger. An element
 * that is left out (shrink-count; full: with it) is the last counted one. */
static struct buffer payload(struct communicator *c, const struct comm *how, struct where where,
                             const struct armed *due, struct buffer in, size_t full)
{
    if (!due && !wire_narrows(in.storage, in.wire) && !deviation_watches(c, how->site))
        return in;
    struct buffer copy = in;
    size_t bytes = in.count * format_storage_bytes(in.storage);
    copy.data = arena_alloc(c->scratch, bytes ? bytes : 1);
    if (bytes > 0)
        memcpy(copy.data, in.data, bytes);
    if (in.count < full) {
        size_t tail = how->uncounted < in.count ? how->uncounted : in.count;
        values_copy(values_at(copy.data, in.count - tail, in.storage), values_at(in.data, full - tail, in.storage), tail,
                    in.storage);
    }
    if (in.ledger) {
        ledger_copy(&c->ledger, in.ledger);
        copy.ledger = &c->ledger;
    }
    if (deviation_kind(due) == DEVIATION_REUSE_BUFFER) {
        memset(copy.data, 0, bytes);
        if (copy.ledger)
            ledger_clear(copy.ledger);
    }
    if (deviation_kind(due) == DEVIATION_FREE_SOURCE) {
        memory_poison(copy.data, bytes);
        if (copy.ledger)
            ledger_clear(copy.ledger);
    }
    if (c->watches && in.count == full)
        hazard_sent(c, how, where, in, copy);
    values_round(copy.data, copy.count - (how->uncounted < copy.count ? how->uncounted : copy.count), copy.storage, copy.wire);
    deviation_result(c, how->site, where, OP_SEND, due, copy, how->uncounted,
                     copy.count);
    return copy;
}

/* Another group in the place of the due one: of as many members it is the one as many places on from this member. */
static int place_in(const struct group *g, const struct group *due, int member)
{
    if (g == due || g->size != due->size)
        return member % g->size;
    return (g->me + member - due->me + g->size) % g->size;
}

struct transfer *send_start(struct communicator *c, struct group *g, const struct comm *how, struct buffer in, int to,
                            uint32_t tag, enum send_mode mode)
{
    ASSERT(how->site && to >= 0 && to < g->size && tag < tag_limit);
    late_complete(c);
    struct where where = how->where;
    where.rank = rank_id(c->rank);
    const struct armed *due = deviation_due(c, how->site, where, OP_SEND, g->ranks[to], g);
    enum communication_deviation kind = deviation_kind(due);
    if (kind == DEVIATION_SKIP || kind == DEVIATION_DROP)
        return NULL;
    struct group *due_group = g;
    g = deviation_group(c, due, g);
    to = deviation_peer(due, place_in(g, due_group, to), g->me, g->size);
    size_t full = in.count;
    in.count = deviation_count(due, in.count, how->uncounted);
    in.wire = deviation_wire(due, in.wire);
    struct call call = transfer_call(OP_SEND, g, how, in.count, in.wire);
    transfer_seen(c, &call);
    struct arena_mark mark = arena_mark(c->scratch);
    struct buffer out = payload(c, how, where, due, in, full);
    struct parcel parcel = {
        .data = out.data, .bytes = out.count * format_storage_bytes(out.storage), .ledger = out.ledger,
        .tail_bytes = (how->uncounted < out.count ? how->uncounted : out.count) * format_storage_bytes(out.storage),
        .accounted_bytes = traffic_bytes(out.count, how->uncounted, out.wire),
    };
    int row = traffic_row(c, &call, true);
    struct transfer *transfer = transport_send(c->rank, g->ranks[to], tag, &call, parcel, mode);
    traffic_add(c, row, parcel.accounted_bytes);
    if (kind == DEVIATION_DUPLICATE) {
        transport_wait(c->rank, transport_send(c->rank, g->ranks[to], tag, &call, parcel, SEND_ASYNC));
        traffic_add(c, row, parcel.accounted_bytes);
    }
    trace_add(c->rank, TRACE_SEND, how->site->name, g->ranks[to], parcel.accounted_bytes, where);
    arena_release(c->scratch, mark);
    return transfer;
}

struct transfer *receive_start(struct communicator *c, struct group *g, const struct comm *how, struct buffer out,
                               int from, uint32_t tag)
{
    ASSERT(how->site && from >= 0 && from < g->size && tag < tag_limit);
    late_complete(c);
    struct where where = how->where;
    where.rank = rank_id(c->rank);
    const struct armed *due = deviation_due(c, how->site, where, OP_RECEIVE, g->ranks[from], g);
    enum communication_deviation kind = deviation_kind(due);
    if (kind == DEVIATION_SKIP || kind == DEVIATION_DROP)
        return NULL;
    struct group *due_group = g;
    g = deviation_group(c, due, g);
    from = deviation_peer(due, place_in(g, due_group, from), g->me, g->size);
    size_t count = deviation_count(due, out.count, how->uncounted);
    enum format wire = deviation_wire(due, out.wire);
    struct call call = transfer_call(OP_RECEIVE, g, how, count, wire);
    transfer_seen(c, &call);
    struct transfer *transfer = transport_receive(c->rank, g->ranks[from], tag, &call);
    GROW(c->pending, c->pending_count, c->pending_capacity);
    c->pending[c->pending_count++] = (struct pending){
        .transfer = transfer, .call = call, .from = g->ranks[from], .where = where, .site = how->site, .due = due,
        .count = count, .wire = wire,
    };
    return transfer;
}

void send_wait(struct communicator *c, struct transfer *transfer)
{
    late_complete(c);
    if (transfer) /* NULL: a deviation kept it from being posted */
        transport_wait(c->rank, transfer);
}

static struct pending pending_remove(struct communicator *c, const struct transfer *transfer)
{
    int i = 0;
    while (i < c->pending_count && c->pending[i].transfer != transfer)
        i++;
    ASSERT_MESSAGE(i < c->pending_count, "rank %d waits for a receive it did not start", rank_id(c->rank));
    struct pending pending = c->pending[i];
    c->pending_count--;
    memmove(&c->pending[i], &c->pending[i + 1], (size_t)(c->pending_count - i) * sizeof *c->pending);
    return pending;
}

/* A message's counted elements from the start, its tail (probes) at the end of the `tail` bytes that are kept for
 * it, what did not arrive NaN. */
void message_copy(void *to, size_t bytes, size_t tail, const struct message *message)
{
    tail = tail < bytes ? tail : bytes;
    size_t front = bytes - tail, front_there = message->bytes - message->tail_bytes;
    if (message->bytes != bytes)
        memory_poison(to, bytes);
    if (front > 0 && front_there > 0)
        memcpy(to, message->data, front < front_there ? front : front_there);
    if (tail > 0 && message->tail_bytes > 0)
        memcpy((char *)to + front, (const char *)message->data + front_there,
               tail < message->tail_bytes ? tail : message->tail_bytes);
}

void receive_wait(struct communicator *c, struct transfer *transfer, const struct comm *how, struct buffer out)
{
    late_complete(c);
    if (!transfer) /* a deviation kept it from being posted: the buffer stays as it is */
        return;
    struct pending pending = pending_remove(c, transfer);
    ASSERT(pending.site == how->site);
    struct message *message = transport_wait(c->rank, transfer);
    struct arena_mark mark = arena_mark(c->scratch);
    enum communication_deviation kind = deviation_kind(pending.due);
    bool is_late = kind == DEVIATION_LATE || kind == DEVIATION_TORN;
    struct late *late = is_late ? late_before(out, pending.site, pending.where, kind == DEVIATION_TORN) : NULL;
    size_t width = format_storage_bytes(out.storage);
    out.count = pending.count < out.count ? pending.count : out.count;
    message_copy(out.data, out.count * width, how->uncounted * width, message);
    if (pending.wire != message->call.format) /* only where the two sides differ */
        values_round(out.data, out.count, out.storage, pending.wire);
    if (out.ledger)
        ledger_copy(out.ledger, &message->ledger);
    if (calls_differ(&pending.call, &message->call, true))
        difference_note(c, &pending.call, message, pending.where, true);
    trace_add(c->rank, TRACE_RECEIVE, how->site->name, pending.from, message->bytes, pending.where);
    message_release(c->rank, message);
    deviation_result(c, how->site, pending.where, OP_RECEIVE, pending.due, out,
                     how->uncounted, out.count);
    arena_release(c->scratch, mark);
    if (late)
        late_hold(c, late);
}

void send_and_wait(struct communicator *c, struct group *g, const struct comm *how, struct buffer in, int to,
                   uint32_t tag, enum send_mode mode)
{
    send_wait(c, send_start(c, g, how, in, to, tag, mode));
}

void receive(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, int from,
             uint32_t tag)
{
    receive_wait(c, receive_start(c, g, how, out, from, tag), how, out);
}
