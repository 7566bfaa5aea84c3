/* reduce_scatter, fold: every member sends each part straight to its owner, who adds in member order.
 *
 *   four ranks, one step; a = part 0, b, c, d; digits: whose contribution
 *            rank 0               rank 1               rank 2               rank 3
 *   send     b0 c0 d0             a1 c1 d1             a2 b2 d2             a3 b3 c3
 *   then     a0+a1+a2+a3          b0+b1+b2+b3          c0+c1+c2+c3          d0+d1+d2+d3
 *
 * Order: part p = ((r[0] + r[1]) + r[2]) + ..., the same for every part and every owner, rounded to the
 * wire's format after each addition. So a result does not depend on how a buffer is cut.
 * Limits: P-1 messages arrive at once at every rank; all of them are held until the sum is done.
 * Cost a rank: P-1 messages; all parts but its own, as the ring. */
#include "collectives/operation.h"

void reduce_scatter_fold(struct operation *o)
{
    struct part *mine = &o->parts[o->me];
    for (int i = 1; i < o->size; i++) {
        int member = operation_member(o, i);
        o->transfers[member] = operation_expect(o, member);
        operation_send(o, member, &o->parts[member]);
    }
    if (o->size == 1)
        return;
    /* Add into what member 0 sent, in place; member 0 adds into its own part. */
    struct part sum = *mine;
    struct message *first = NULL;
    if (o->me != 0)
        first = operation_arrive(o, o->transfers[0], mine, &sum);
    for (int i = 1; i < o->size; i++) {
        if (i == o->me) {
            part_reduce(o, &sum, mine);
            continue;
        }
        struct part arrived;
        struct message *message = operation_arrive(o, o->transfers[i], mine, &arrived);
        part_reduce(o, &sum, &arrived);
        operation_release(o, message);
    }
    part_take(o, mine, &sum);
    if (first)
        operation_release(o, first);
}
