/* broadcast, binomial tree: those who have the data double in number every round.
 *
 * With v = (rank - root) mod P and b the lowest bit set in v (for the root: the first power of two not
 * below P): v receives from v - b, then sends to v + b/2, v + b/4, ..., v + 1, as far as those exist.
 *
 *   four ranks, root 0
 *            rank 0      rank 1      rank 2      rank 3
 *   round 0  x ->2                   x
 *   round 1  x ->1       x           x ->3       x
 *
 * Nothing is added. Limits: the whole buffer is one message.
 * Cost: P-1 messages in all, ceil(log2 P) rounds; the root sends ceil(log2 P) buffers. */
#include "collectives/operation.h"

void broadcast_binomial(struct operation *o)
{
    int v = (o->me - o->root + o->size) % o->size;
    int bit = 1;
    while (bit < o->size && !(v & bit))
        bit <<= 1;
    if (v != 0) {
        struct part arrived;
        struct message *message = operation_receive(o, operation_member(o, -bit), &o->parts[0], &arrived);
        part_take(o, &o->parts[0], &arrived);
        operation_release(o, message);
    }
    for (bit >>= 1; bit > 0; bit >>= 1)
        if (v + bit < o->size)
            operation_send(o, operation_member(o, bit), &o->parts[0]);
}
