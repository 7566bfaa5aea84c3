/* all_to_all, linear: everybody sends everything at once, then takes what comes in member order.
 *
 *   four ranks, one step; digits: from whom to whom
 *            rank 0        rank 1        rank 2        rank 3
 *   send     01 02 03      10 12 13      20 21 23      30 31 32
 *   then     00 10 20 30   01 11 21 31   02 12 22 32   03 13 23 33
 *
 * Nothing is added. Limits: P-1 messages arrive at once at every rank; parts may differ in size and be empty.
 * Cost a rank: P-1 messages, all parts of its input but its own. */
#include "collectives/operation.h"

void all_to_all_linear(struct operation *o)
{
    for (int i = 1; i < o->size; i++) {
        int member = operation_member(o, i);
        o->transfers[member] = operation_expect(o, member);
        operation_send(o, member, &o->sources[member]);
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
