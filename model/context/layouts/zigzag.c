/* zigzag: the sequence is cut into 2P runs, and member r holds run r and run 2P - 1 - r.
 *
 *   rows of run i = S / 2P, one more for i < S mod 2P
 *   S = 11, P = 2:  runs 0 1 2 | 3 4 5 | 6 7 8 | 9 10:   member 0 has 0 1 2 9 10, member 1 has 3 4 5 6 7 8
 *
 * Under a causal mask every member has the same to compute, to one run's rounding. Source: zhuzilin/ring-flash-attention
 * zigzag_ring_flash_attn.py; Llama 3 (arXiv 2407.21783); Megatron-LM's context parallelism. There S must divide by 2P. */
#include "model/context/context.h"

static int64_t run(int64_t seq, int runs, int i, int32_t *ret)
{
    int64_t each = seq / runs, more = seq % runs, count = each + (i < more), begin = each * i + (i < more ? i : more);
    for (int64_t k = 0; ret && k < count; k++) ret[k] = (int32_t)(begin + k);
    return count;
}

static int64_t positions(int64_t seq, int size, int me, const int32_t *documents, int32_t *ret)
{
    (void)documents;
    int64_t first = run(seq, 2 * size, me, ret);
    return first + run(seq, 2 * size, 2 * size - 1 - me, ret ? ret + first : NULL);
}

const struct context_layout context_layout_zigzag = {"zigzag", false, positions};
