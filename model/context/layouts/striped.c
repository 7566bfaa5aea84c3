/* striped: position i is on member i mod P.
 *
 *   S = 11, P = 4:  0 4 8 | 1 5 9 | 2 6 10 | 3 7
 *
 * Under a causal mask every block is half seen, on and below or below the diagonal of its two members' rows.
 * Source: Brandon et al. 2023, Striped Attention (arXiv 2311.09431). */
#include "model/context/context.h"

static int64_t positions(int64_t seq, int size, int me, const int32_t *documents, int32_t *ret)
{
    (void)documents;
    int64_t count = 0;
    for (int64_t at = me; at < seq; at += size, count++) {
        if (ret) ret[count] = (int32_t)at;
    }
    return count;
}

const struct context_layout context_layout_striped = {"striped", false, positions};
