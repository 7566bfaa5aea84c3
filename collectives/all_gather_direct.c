/* all_gather, direct: each sends its part to each.
 *
 *   four ranks, one step; a = part 0, b, c, d
 *            rank 0       rank 1       rank 2       rank 3
 *   send     a a a        b b b        c c c        d d d
 *   then     a b c d      a b c d      a b c d      a b c d
 *
 * Nothing is added. Limits: P-1 messages arrive at once at every rank.
 * Cost a rank: P-1 messages of its own part. */
#include "collectives/operation.h"

void all_gather_direct(struct operation *o)
{
    for (int i = 1; i < o->size; i++) {
        int member = operation_member(o, i);
        o->transfers[member] = operation_expect(o, member);
        operation_send(o, member, &o->parts[o->me]);
    }
    for (int i = 0; i < o->size; i++) {
        struct part arrived;
        if (i == o->me)
            continue;
        struct message *message = operation_arrive(o, o->transfers[i], &o->parts[i], &arrived);
        part_take(o, &o->parts[i], &arrived);
        operation_release(o, message);
    }
}
