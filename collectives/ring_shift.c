/* ring_shift: every member passes a buffer to the member `shift` places on.
 *
 *   four ranks, shift 1
 *            rank 0      rank 1      rank 2      rank 3
 *   start    a           b           c           d
 *   after    d           a           b           c
 *
 * Nothing is added. The payload is copied when it is sent, so that out and in may be one buffer.
 * Cost a rank: one message of the whole buffer; none where shift is a multiple of the size. */
#include "collectives/communicator_state.h"

#include <string.h>
#include "sim/assertion.h"

void ring_shift(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in,
                int shift)
{
    ASSERT(in.storage == out.storage);
    struct buffer shape = {.storage = in.storage, .wire = in.wire, .ledger = in.ledger};
    struct operation *o = operation_begin(c, g, how, OP_RING_SHIFT, shape, REDUCE_SUM, -1);
    double clock_s = operation_open(o);
    size_t count = deviation_count(o->due, in.count, how->uncounted), bytes = count * format_storage_bytes(o->storage);
    int places = (shift % o->size + o->size) % o->size;
    places = deviation_peer(o->due, places, 0, o->size);
    o->call.root = places; /* members must agree on it, as on a root */
    struct part part = {.data = in.data, .count = count, .uncounted = how->uncounted, .ledger = in.ledger,
                        .own = o->ledgers ? &o->ledgers_own[0] : NULL};
    bool enter = operation_enter(o, count);
    if (wire_narrows(o->storage, o->wire) && count > 0) { /* in stays as it is */
        part.data = operation_scratch(o, count);
        memcpy(part.data, in.data, bytes);
        part_round(o, &part, o->wire);
    }
    struct part arrived = part;
    struct message *message = NULL;
    if (enter && places != 0) {
        operation_send(o, operation_member(o, places), &part);
        message = operation_receive(o, operation_member(o, -places), &part, &arrived);
    }
    out.count = count < out.count ? count : out.count;
    if (enter || deviation_kind(o->due) == DEVIATION_SKIP) {
        if (out.count > 0 && out.data != arrived.data)
            memmove(out.data, arrived.data, out.count * format_storage_bytes(o->storage));
        if (out.ledger && arrived.ledger && arrived.ledger != out.ledger)
            ledger_copy(out.ledger, arrived.ledger);
    }
    if (message)
        operation_release(o, message);
    deviation_result(c, how->site, o->where, OP_RING_SHIFT, o->due, out, how->uncounted,
                     out.count);
    operation_close(o, clock_s);
    operation_end(o);
}
