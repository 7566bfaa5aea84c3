/* reduce, binomial tree: those who still have something to give halve in number every round.
 *
 * With v = (rank - root) mod P: for b = 1, 2, 4, ... a member whose bit b of v is set sends what it has to v - b
 * and is done; the others add what v + b sends, where that exists.
 *
 *   four ranks, root 0; digits: whose contributions are in the sum
 *            rank 0      rank 1      rank 2      rank 3
 *   round 0  0           1 ->0       2           3 ->2
 *   round 1  01                      23 ->0
 *   then     0123
 *
 * Order: by v, S(v) = ((r[v] + S(v+1)) + S(v+2)) + S(v+4) + ..., for each power of two below the lowest bit set
 * in v (for the root: all), a v that does not exist left out; rounded to the wire's format after each addition.
 * The order so depends on the root. A member that is not the root adds in a buffer of its own.
 * Limits: the whole buffer is one message.
 * Cost: P-1 messages of n elements in all, one of each member but the root; ceil(log2 P) rounds. */
#include "collectives/operation.h"

void reduce_binomial(struct operation *o)
{
    int v = (o->me - o->root + o->size) % o->size;
    for (int bit = 1; bit < o->size; bit *= 2) {
        struct part arrived;
        if (v & bit) {
            operation_send(o, operation_member(o, -bit), &o->parts[0]);
            return;
        }
        if (v + bit >= o->size)
            continue;
        struct message *message = operation_receive(o, operation_member(o, bit), &o->parts[0], &arrived);
        part_reduce(o, &o->parts[0], &arrived);
        operation_release(o, message);
    }
}
