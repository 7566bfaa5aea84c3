/* reduce_scatter, ring: part p travels once around the ring and picks up every contribution.
 *
 * Step s (0 .. P-2): rank r sends part r-s-1 to r+1, receives part r-s-2 from r-1 and adds its own.
 *
 *   four ranks, who holds a partial sum of which part (a = part 0, b, c, d; digits: whose is in it)
 *            rank 0          rank 1          rank 2          rank 3
 *   send     d0 ->1          a1 ->2          b2 ->3          c3 ->0
 *   step 0   c30 ->1         d01 ->2         a12 ->3         b23 ->0
 *   step 1   b230 ->1        c301 ->2        d012 ->3        a123 ->0
 *   step 2   a1230 = mine    b2301 = mine    c3012 = mine    d0123 = mine
 *
 * Order: part p = ((r[p+1] + r[p+2]) + ...) + r[p], indices modulo P; what arrived is the left operand.
 * Every partial sum is rounded to the wire's format. Unlike a fold, the order depends on the part.
 * Limits: parts may differ in size and be empty; P-1 steps, so latency grows with P.
 * Cost a rank: P-1 messages; all parts but its own one each, about (P-1)/P of the buffer. */
#include "collectives/operation.h"

void reduce_scatter_ring(struct operation *o)
{
    if (o->size == 1)
        return;
    int right = operation_member(o, 1), left = operation_member(o, -1);
    operation_send(o, right, &o->parts[left]);
    for (int step = 0; step < o->size - 1; step++) {
        struct part *mine = &o->parts[operation_member(o, -step - 2)];
        struct part sum;
        struct message *message = operation_receive(o, left, mine, &sum);
        part_reduce(o, &sum, mine);
        if (step < o->size - 2)
            operation_send(o, right, &sum);
        else
            part_take(o, mine, &sum); /* the last part to arrive is this rank's own */
        operation_release(o, message);
    }
}
