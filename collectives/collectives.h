/* collectives: every operation. In place where one buffer is given. A group of one copies.
 *
 * All members call with the same operation, count, format, reduction and root, in the same order;
 * a call that deviates is found afterwards by match_calls (collectives/match.h), and, as on a real
 * network, goes through with what arrived: a short message leaves the rest NaN.
 * Reductions add in the order that the algorithm's file states, storing in `wire` after each addition;
 * REDUCE_AVG divides the finished sum by the size. */
#ifndef COLLECTIVES_COLLECTIVES_H
#define COLLECTIVES_COLLECTIVES_H

#include "collectives/communicator.h"

/* `uncounted` of struct comm: all_gather, reduce_scatter, gather: the elements at the end of each part;
 * all_reduce: at the end of the whole buffer; else: of the message. */

/* out[i] = op over members of in[i], on every member. */
void all_reduce(struct communicator *c, struct group *g, const struct comm *how, struct buffer in_out,
                enum reduce_op op);
/* out = member 0's part, member 1's part, ...; counts[size] elements each (0 allowed), or NULL where all
 * give in.count. out.ledger becomes the sum of the members' ledgers. in.data may be its own place in out. */
void all_gather(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in,
                const size_t *counts);
/* Member i gets op over members of their i-th part. in holds size parts; counts as above (NULL: equal,
 * out.count each). in is used as work space. */
void reduce_scatter(struct communicator *c, struct group *g, const struct comm *how, struct buffer out,
                    struct buffer in, const size_t *counts, enum reduce_op op);
void broadcast(struct communicator *c, struct group *g, const struct comm *how, struct buffer in_out, int root);
/* Root gets every member's part in member order (out unused elsewhere). */
void gather(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in,
            const size_t *counts, int root);
void barrier(struct communicator *c, struct group *g, const struct comm *how);

/* Point to point: member indices of g. tag (below 2^31) tells streams apart (for instance forward, backward).
 * A start gives NULL where a deviation keeps it from being posted; waiting for NULL does nothing. */
struct transfer *send_start(struct communicator *c, struct group *g, const struct comm *how, struct buffer in, int to,
                            uint32_t tag, enum send_mode mode);
struct transfer *receive_start(struct communicator *c, struct group *g, const struct comm *how, struct buffer out,
                               int from, uint32_t tag);
void send_wait(struct communicator *c, struct transfer *transfer);
/* With how and out of the start. What does not arrive is NaN, what is too much is cut. */
void receive_wait(struct communicator *c, struct transfer *transfer, const struct comm *how, struct buffer out);
/* Start and wait. (Not "send": libc has that name.) */
void send_and_wait(struct communicator *c, struct group *g, const struct comm *how, struct buffer in, int to,
                   uint32_t tag, enum send_mode mode);
void receive(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, int from,
             uint32_t tag);
/* Sends to member me+shift, receives from me-shift (modulo size) at once. out and in may be one buffer. */
void ring_shift(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in,
                int shift);

/* The registry: one line an algorithm in collectives.def, one file each. */
struct collective_algorithm { const char *op; const char *name; };
int collective_algorithm_count(void);
const struct collective_algorithm *collective_algorithm(int i);

/* Deviations that communication sites can have here, for the registries. */
int communication_deviation_count(void);
const struct deviation *communication_deviation(int i);

#endif
