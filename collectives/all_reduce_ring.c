/* all_reduce, ring: a ring reduce-scatter over P parts, then a ring all-gather of the sums.
 *
 * A buffer of n elements is cut into P parts: the first n mod P have ceil(n/P) elements, the rest
 * floor(n/P). After the first half rank r owns the whole sum of part r (see reduce_scatter_ring.c).
 *
 *   four ranks; a = part 0, b, c, d; capital: summed over all
 *            rank 0      rank 1      rank 2      rank 3
 *   start    a b c d     a b c d     a b c d     a b c d
 *   3 steps  A . . .     . B . .     . . C .     . . . D     reduce-scatter
 *   3 steps  A B C D     A B C D     A B C D     A B C D     all-gather
 *
 * Order: of part p ((r[p+1] + r[p+2]) + ...) + r[p]: elements of different parts add in different
 * orders, every member gets the same bits. Equal to fold for two members.
 * Limits: n < P leaves parts empty, which are sent all the same; 2(P-1) steps.
 * Cost a rank: 2(P-1) messages; about 2 n (P-1)/P elements, over all ranks exactly 2 n (P-1). */
#include "collectives/operation.h"

void all_reduce_ring(struct operation *o)
{
    reduce_scatter_ring(o);
    all_gather_ring(o);
}
