/* barrier, dissemination: in round k a rank tells rank + 2^k and hears from rank - 2^k.
 *
 *   four ranks, who has been heard of, directly or through others
 *            rank 0      rank 1      rank 2      rank 3
 *   start    0           1           2           3
 *   round 0  0 3         0 1         1 2         2 3
 *   round 1  0 1 2 3     0 1 2 3     0 1 2 3     0 1 2 3
 *
 * Nothing is added or moved. Limits: none; any P.
 * Cost a rank: ceil(log2 P) messages of no bytes. (Hensgen, Finkel, Manber: Two Algorithms for Barrier
 * Synchronization, 1988.) */
#include "collectives/operation.h"

void barrier_dissemination(struct operation *o)
{
    const struct part nothing = {0};
    for (int distance = 1; distance < o->size; distance *= 2) {
        struct part arrived;
        operation_send(o, operation_member(o, distance), &nothing);
        struct message *message = operation_receive(o, operation_member(o, -distance), &nothing, &arrived);
        operation_release(o, message);
    }
}
