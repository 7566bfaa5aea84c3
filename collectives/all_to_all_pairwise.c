/* all_to_all, pairwise: P-1 steps; in step s a rank sends to rank + s and receives from rank - s.
 *
 *   four ranks; digits: from whom to whom
 *            rank 0      rank 1      rank 2      rank 3
 *   start    00          11          22          33          its own part, by a copy
 *   step 1   01 ->1      12 ->2      23 ->3      30 ->0
 *   step 2   02 ->2      13 ->3      20 ->0      31 ->1
 *   step 3   03 ->3      10 ->0      21 ->1      32 ->2
 *   then     00 10 20 30 01 11 21 31 02 12 22 32 03 13 23 33
 *
 * Nothing is added. Limits: none; parts may differ in size and be empty.
 * Cost a rank: P-1 messages, all parts of its input but its own. One message at a time arrives at a rank. */
#include "collectives/operation.h"

void all_to_all_pairwise(struct operation *o)
{
    for (int step = 1; step < o->size; step++) {
        int to = operation_member(o, step), from = operation_member(o, -step);
        struct part arrived;
        operation_send(o, to, &o->sources[to]);
        struct message *message = operation_receive(o, from, &o->parts[from], &arrived);
        part_take(o, &o->parts[from], &arrived);
        operation_release(o, message);
    }
}
