/* all_reduce, tree: up one binary tree to its root, member 0, and down again.
 *
 * Member i has the children 2i+1 and 2i+2, as far as those exist, and the parent (i-1)/2. Everybody waits for
 * its children's sums, adds them, and passes the whole buffer on.
 *
 *   four ranks; digits: whose contributions are in the sum
 *            rank 0      rank 1      rank 2      rank 3
 *   start    0           1           2           3 ->1
 *   up       0           13 ->0      2 ->0
 *            0132
 *   down     x ->1 ->2   x ->3       x           x
 *
 * Order: S(i) = (r[i] + S(2i+1)) + S(2i+2), a child that does not exist left out; the result is S(0), rounded to
 * the wire's format after each addition, for all elements alike. Equal to ring and fold for two members.
 * Limits: the whole buffer is one message, so nothing overlaps; an inner member handles four buffers.
 * Cost: 2(P-1) messages of n elements in all, one up and one down for each member but the root; 2 floor(log2 P)
 * steps. */
#include "collectives/operation.h"

void all_reduce_tree(struct operation *o)
{
    struct part whole = operation_range(o, 0, o->size), arrived;
    int parent = (o->me - 1) / 2, first = 2 * o->me + 1, end = first + 2 < o->size ? first + 2 : o->size;
    for (int child = first; child < end; child++) {
        struct message *message = operation_receive(o, child, &whole, &arrived);
        part_reduce(o, &whole, &arrived);
        operation_release(o, message);
    }
    if (o->me > 0) {
        operation_send(o, parent, &whole);
        struct message *message = operation_receive(o, parent, &whole, &arrived);
        part_take(o, &whole, &arrived);
        operation_release(o, message);
    }
    for (int child = first; child < end; child++)
        operation_send(o, child, &whole);
    operation_range_done(o, 0, o->size, &whole);
}
