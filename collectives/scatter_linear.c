/* scatter, linear: the root sends every member its part.
 *
 *   four ranks, root 1; a = part 0, b, c, d
 *            rank 0      rank 1      rank 2      rank 3
 *   start                a b c d
 *   send                 a ->0 c ->2 d ->3
 *   then     a           b           c           d
 *
 * Nothing is added. Limits: the root sends one part after the other.
 * Cost: P-1 messages, the root's: all parts but its own. */
#include "collectives/operation.h"

void scatter_linear(struct operation *o)
{
    if (o->me == o->root) {
        for (int i = 0; i < o->size; i++)
            if (i != o->me)
                operation_send(o, i, &o->parts[i]);
        return;
    }
    struct part arrived;
    struct message *message = operation_receive(o, o->root, &o->parts[o->me], &arrived);
    part_take(o, &o->parts[o->me], &arrived);
    operation_release(o, message);
}
