/* all_gather, ring: every part travels once around the ring and is copied by whom it passes.
 *
 * Step s (0 .. P-2): rank r sends part r-s to r+1 and receives part r-s-1 from r-1.
 *
 *   four ranks; a = part 0, b, c, d
 *            rank 0      rank 1      rank 2      rank 3
 *   start    a           b           c           d
 *   step 0   a d         a b         b c         c d
 *   step 1   a c d       a b d       a b c       b c d
 *   step 2   a b c d     a b c d     a b c d     a b c d
 *
 * Nothing is added. Limits: parts may differ in size and be empty.
 * Cost a rank: P-1 messages; all parts but its right neighbour's. */
#include "collectives/operation.h"

void all_gather_ring(struct operation *o)
{
    int right = operation_member(o, 1), left = operation_member(o, -1);
    for (int step = 0; step < o->size - 1; step++) {
        struct part *place = &o->parts[operation_member(o, -step - 1)];
        struct part arrived;
        operation_send(o, right, &o->parts[operation_member(o, -step)]);
        struct message *message = operation_receive(o, left, place, &arrived);
        part_take(o, place, &arrived);
        operation_release(o, message);
    }
}
