/* transport: messages between ranks in memory, matched by (source, destination, group, tag) in order.
 *
 * The payload is copied when it is posted, so a sender may reuse its buffer; the receiver reads the
 * message in place and releases it. A receive names what it expects; the two sides' descriptions travel
 * along and are compared by the receiver (collectives/match.h), never by the transport: like a real
 * network it delivers what was sent. */
#ifndef SIM_TRANSPORT_H
#define SIM_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>
#include "sim/format.h"
#include "sim/ledger.h"
#include "sim/machine.h"

/* What a rank believes it takes part in. */
struct call {
    const char *op;          /* "all_reduce", "send" ...; static text */
    const char *algorithm;   /* "ring"; "" where there is none */
    const char *purpose;     /* the site's name; static text */
    const char *group;       /* "dp_shard"; lives as long as the machine */
    uint32_t group_id;       /* the same on all members, unique in the machine */
    uint64_t sequence;       /* this member's call number in the group, from 0 */
    uint64_t count;          /* elements, as the op counts them */
    enum format format;      /* on the wire */
    int reduce;              /* enum reduce_op, or -1 */
    int root;                /* member index, or -1 */
};

enum send_mode {
    SEND_ASYNC,              /* waiting for it never parks */
    SEND_SYNC,               /* waiting for it parks until the receive was posted (rendezvous) */
};

struct parcel {
    const void *data; size_t bytes;
    const struct ledger *ledger;     /* moves with the data; NULL: none */
    size_t accounted_bytes;          /* what a real system would send (without probes, in the wire's format) */
    size_t tail_bytes;               /* at the end: probes, which accounts leave out */
};

struct message {
    int source, destination;
    uint32_t tag;
    struct call call;                /* the sender's */
    void *data; size_t bytes;        /* receiver may write to it until release */
    size_t tail_bytes;               /* of these, at the end: the parcel's */
    struct ledger ledger;            /* count 0 where none was sent */
    double arrival_s;
};

struct transfer;                     /* an operation in flight, owned by its rank until waited for */

struct transfer *transport_send(struct rank *rank, int destination, uint32_t tag, const struct call *call,
                                struct parcel parcel, enum send_mode mode);
struct transfer *transport_receive(struct rank *rank, int source, uint32_t tag, const struct call *call);
/* Parks until done. For a receive returns the message, which the caller releases; for a send NULL.
 * Each transfer is waited for exactly once. */
struct message *transport_wait(struct rank *rank, struct transfer *transfer);
void message_release(struct rank *rank, struct message *message);
int transport_unwaited(const struct rank *rank); /* transfers posted and never waited for */

/* What a rank sent so far. */
struct transport_count { uint64_t messages, bytes; };
struct transport_count transport_sent(const struct rank *rank);

#endif
