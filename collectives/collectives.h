/* collectives: every operation. A group of one copies.
 *
 * All members call with the same operation, count, format, reduction and root, in the same order;
 * a call that deviates is found afterwards by match_calls (collectives/match.h), and, as on a real
 * network, goes through with what arrived: a short message leaves the rest NaN.
 * Reductions add in the order that the algorithm's file states, storing in `wire` after each addition;
 * REDUCE_AVG divides the finished sum by the size.
 *
 * In place or not:
 *   all_reduce, broadcast          in place (all_reduce_to, reduce_to: out may be in)
 *   all_gather, gather             in may be its own place in out
 *   reduce_scatter, scatter        out may be its own place in in
 *   all_to_all                     out and in don't overlap
 * Nowhere else may a buffer overlap another, or any other member's. An input that is not the output stays as
 * it is; an output that an operation gives a member nothing in (not the root) is not touched and may be anything.
 *
 * Asynchronous: a start names the buffers and returns, the wait gives the result; several may be in flight. The
 * input is read and the output written some time between the two: whoever writes the one or reads the other
 * before the wait gets what he deserves. An output that is not the input too is filled with NaN at the start.
 * Each handle is waited for once (transport_unwaited counts those that were not), in any order. The blocking
 * form of an operation is its start and its wait, without the NaNs.
 *
 * Two ways, the same bits (meeting.c): where the run's plan arms no deviation at any communication site, members
 * meet: the last one's start lets the result be computed between two rounds, straight from the inputs into the
 * outputs, in the order in which the algorithm's messages would have added; as soon as one member waits. Else,
 * and where a member is missing or describes another call (told apart before anything was done), everything
 * goes message by message, at the wait. All ranks see the same plan, so all choose the same way. Results,
 * ledgers, log, traffic, virtual time, trace and what is reported of a deadlock are the same either way; the
 * number of rounds is not. By messages a wait holds its rank until the others come to theirs. */
#ifndef COLLECTIVES_COLLECTIVES_H
#define COLLECTIVES_COLLECTIVES_H

#include "collectives/communicator.h"

/* `uncounted` of struct comm: all_reduce, reduce, broadcast: the elements at the end of the whole buffer;
 * else: at the end of each part or message. */

/* out[i] = op over members of in[i], on every member. */
void all_reduce(struct communicator *c, struct group *g, const struct comm *how, struct buffer in_out,
                enum reduce_op op);
void all_reduce_to(struct communicator *c, struct group *g, const struct comm *how, struct buffer out,
                   struct buffer in, enum reduce_op op);
/* The same on the root alone. */
void reduce_to(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in,
            enum reduce_op op, int root);
/* out = member 0's part, member 1's part, ...; counts[size] elements each (0 allowed), or NULL where all
 * give in.count. out.ledger becomes the sum of the members' ledgers. */
void all_gather(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in,
                const size_t *counts);
/* Member i gets op over members of their i-th part. in holds size parts; counts as above (NULL: equal,
 * out.count each). */
void reduce_scatter(struct communicator *c, struct group *g, const struct comm *how, struct buffer out,
                    struct buffer in, const size_t *counts, enum reduce_op op);
void broadcast(struct communicator *c, struct group *g, const struct comm *how, struct buffer in_out, int root);
/* Root gets every member's part in member order. */
void gather(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in,
            const size_t *counts, int root);
/* Member i gets the root's i-th part. counts as above (NULL: equal, out.count each). */
void scatter(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in,
             const size_t *counts, int root);
/* Part i of in goes to member i, part i of out comes from member i; all of in.count / size elements. The ledger
 * of a part is that of the whole in; out.ledger becomes the sum over members. */
void all_to_all(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in);
/* With send_counts[i] elements to and receive_counts[i] from member i. The log says 0 for the count of such a
 * call; that a member's sends and another's receives differ is found by the receiver. */
void all_to_all_uneven(struct communicator *c, struct group *g, const struct comm *how, struct buffer out,
                       struct buffer in, const size_t *send_counts, const size_t *receive_counts);
void barrier(struct communicator *c, struct group *g, const struct comm *how);

struct collective;                 /* in flight, its communicator's */
struct collective *all_reduce_start(struct communicator *c, struct group *g, const struct comm *how,
                                    struct buffer out, struct buffer in, enum reduce_op op);
struct collective *reduce_scatter_start(struct communicator *c, struct group *g, const struct comm *how,
                                        struct buffer out, struct buffer in, const size_t *counts, enum reduce_op op);
struct collective *all_gather_start(struct communicator *c, struct group *g, const struct comm *how,
                                    struct buffer out, struct buffer in, const size_t *counts);
struct collective *all_to_all_start(struct communicator *c, struct group *g, const struct comm *how,
                                    struct buffer out, struct buffer in, const size_t *send_counts,
                                    const size_t *receive_counts); /* both NULL: equal */
void collective_wait(struct communicator *c, struct collective *collective);

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
/* One number of each member, added up in the order of this algorithm of the all-reduce: the distinct sums that the parts of a
 * buffer get, at most `size` of them. Returns how many; 0: the communicator knows no such algorithm. */
int all_reduce_sums(const struct communicator *c, const char *algorithm, const double *contributions, int size, double *ret_sums);

/* Deviations that communication sites can have here, for the registries. */
int communication_deviation_count(void);
const struct deviation *communication_deviation(int i);

#endif
