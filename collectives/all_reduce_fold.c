/* all_reduce, fold: every element is added in member order, r[0] + r[1] + ... + r[P-1], wherever it lies.
 *
 * A buffer of n elements is cut as in all_reduce_ring.c; each part is sent straight to its owner, who
 * folds it (reduce_scatter_fold.c) and sends the sum to everybody (all_gather_direct.c).
 *
 *   four ranks; a = part 0, b, c, d; capital: summed over all
 *            rank 0      rank 1      rank 2      rank 3
 *   start    a b c d     a b c d     a b c d     a b c d
 *   1 step   A . . .     . B . .     . . C .     . . . D     fold
 *   1 step   A B C D     A B C D     A B C D     A B C D     direct all-gather
 *
 * Order: ((r[0] + r[1]) + r[2]) + ...; every member gets the same bits.
 * Limits: P-1 messages arrive at once at every rank.
 * Cost a rank: 2(P-1) messages; over all ranks exactly 2 n (P-1) elements, as the ring. */
#include "collectives/operation.h"

void all_reduce_fold(struct operation *o)
{
    reduce_scatter_fold(o);
    all_gather_direct(o);
}
