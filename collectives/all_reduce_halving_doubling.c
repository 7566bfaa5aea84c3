/* all_reduce, halving_doubling: recursive halving reduce-scatter, then recursive doubling all-gather.
 *
 * Q is the largest power of two that is not above P. The P-Q surplus members from Q on first send all they
 * have to member r-Q, which adds it, and get the finished sum from it in the end. Among the other Q, the
 * buffer's P parts form Q chunks, chunk j of parts floor(jP/Q) ... floor((j+1)P/Q) - 1. For d = Q/2, ..., 2, 1
 * member r keeps the half of its chunks in which its own lies (the upper one where bit d of r is set), sends the
 * other half to member r xor d and adds what comes from there; so it ends with chunk r. For d = 1, 2, ..., Q/2 it
 * exchanges all it has with member r xor d.
 *
 *   four ranks; a = part 0, b, c, d; digits: whose contributions are in it
 *            rank 0           rank 1           rank 2           rank 3
 *   send     c0 d0 ->2        c1 d1 ->3        a2 b2 ->0        a3 b3 ->1
 *   d = 2    a02 b02          a13 b13          c20 d20          c31 d31
 *   d = 1    a0213            b1302            c2031            d3120
 *   d = 1    A B              A B              C D              C D
 *   d = 2    A B C D          A B C D          A B C D          A B C D
 *
 * Order: of chunk j S(1, j), where S(d, r) = S(2d, r) + S(2d, r xor d) and S(Q, r) = r[r] (+ r[r+Q] where
 * that exists), rounded to the wire's format after each addition.
 * Limits: chunks differ in size where P is no power of two; surplus members move whole buffers.
 * Cost: 2 log2 Q messages a rank of the first Q, one more where it has a surplus member to serve, one for each
 * of those; over all ranks exactly 2 n (P-1) elements, as the ring. (Rabenseifner: Optimization of Collective Reduction Operations, 2004; Thakur, Rabenseifner,
 * Gropp: Optimization of Collective Communication Operations in MPICH, 2005.) */
#include "collectives/operation.h"

struct chunks { int first, count; }; /* of Q */

static struct part chunks_range(struct operation *o, int q, struct chunks chunks, int *ret_first, int *ret_count)
{
    *ret_first = chunks.first * o->size / q;
    *ret_count = (chunks.first + chunks.count) * o->size / q - *ret_first;
    return operation_range(o, *ret_first, *ret_count);
}

static void chunks_send(struct operation *o, int to, int q, struct chunks chunks)
{
    int first, count;
    struct part range = chunks_range(o, q, chunks, &first, &count);
    operation_send(o, to, &range);
}

static void chunks_receive(struct operation *o, int from, int q, struct chunks chunks, bool add)
{
    int first, count;
    struct part range = chunks_range(o, q, chunks, &first, &count), arrived;
    struct message *message = operation_receive(o, from, &range, &arrived);
    if (add)
        part_reduce(o, &range, &arrived);
    else
        part_take(o, &range, &arrived);
    operation_release(o, message);
    operation_range_done(o, first, count, &range);
}

static void exchange(struct operation *o, int q)
{
    struct chunks mine = {0, q};
    for (int d = q / 2; d >= 1; d /= 2) {
        struct chunks other = {mine.first, d};
        mine = (struct chunks){mine.first, d};
        *(o->me & d ? &mine.first : &other.first) += d;
        chunks_send(o, o->me ^ d, q, other);
        chunks_receive(o, o->me ^ d, q, mine, true);
    }
    for (int d = 1; d < q; d *= 2) {
        struct chunks other = {mine.first ^ d, d};
        chunks_send(o, o->me ^ d, q, mine);
        chunks_receive(o, o->me ^ d, q, other, false);
        mine = (struct chunks){mine.first & ~d, 2 * d};
    }
}

void all_reduce_halving_doubling(struct operation *o)
{
    int q = 1;
    while (2 * q <= o->size)
        q *= 2;
    const struct chunks all = {0, q};
    if (o->me >= q) {
        chunks_send(o, o->me - q, q, all);
        chunks_receive(o, o->me - q, q, all, false);
        return;
    }
    bool surplus = o->me + q < o->size;
    if (surplus)
        chunks_receive(o, o->me + q, q, all, true);
    exchange(o, q);
    if (surplus)
        chunks_send(o, o->me + q, q, all);
}
