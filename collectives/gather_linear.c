/* gather, linear: every member sends its part straight to the root.
 *
 *   four ranks, root 1; a = part 0, b, c, d
 *            rank 0      rank 1      rank 2      rank 3
 *   send     a ->1                   c ->1       d ->1
 *   then                 a b c d
 *
 * Nothing is added. Limits: P-1 messages arrive at once at the root.
 * Cost: one message of its own part for every member but the root. */
#include "collectives/operation.h"

void gather_linear(struct operation *o)
{
    if (o->me != o->root) {
        operation_send(o, o->root, &o->parts[o->me]);
        return;
    }
    for (int i = 0; i < o->size; i++)
        if (i != o->me)
            o->transfers[i] = operation_expect(o, i);
    for (int i = 0; i < o->size; i++) {
        struct part arrived;
        if (i == o->me)
            continue;
        struct message *message = operation_arrive(o, o->transfers[i], &o->parts[i], &arrived);
        part_take(o, &o->parts[i], &arrived);
        operation_release(o, message);
    }
}
