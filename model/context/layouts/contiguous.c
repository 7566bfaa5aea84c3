/* contiguous: member r holds one run of positions.
 *
 *   rows of r = S / P, one more for r < S mod P;  the runs lie one after the other
 *   S = 11, P = 4:  0 1 2 | 3 4 5 | 6 7 8 | 9 10
 *
 * Under a causal mask the last member has the most to compute: of the block of member c member r sees all (c < r), half
 * (c = r) or nothing (c > r). Source: zhuzilin/ring-flash-attention ring_flash_attn.py; DeepSpeed-Ulysses. */
#include "model/context/context.h"

static int64_t positions(int64_t seq, int size, int me, const int32_t *documents, int32_t *ret)
{
    (void)documents;
    int64_t each = seq / size, more = seq % size, count = each + (me < more), begin = each * me + (me < more ? me : more);
    for (int64_t i = 0; ret && i < count; i++) ret[i] = (int32_t)(begin + i);
    return count;
}

const struct context_layout context_layout_contiguous = {"contiguous", false, positions};
