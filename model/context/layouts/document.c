/* document: each document of a packed sequence is cut as zigzag cuts a sequence.
 *
 *   A document of L tokens (a run of one number; padding counts as one document): f = L / 2P tokens in each of 2P runs, of which
 *   member r has run r and run 2P - 1 - r. The L - 2P f tokens left over, its last ones, go to members in turn, and the
 *   turn goes on from document to document; so that member r has S / P + (r < S mod P) tokens whatever the documents are.
 *   S = 11, P = 2, documents 0 0 0 0 0 0 1 1 1 1 1:  f = 1: 0 3 | 1 2, left 4 -> 0, 5 -> 1; f = 1: 6 9 | 7 8, left 10 -> 0
 *   member 0: 0 3 4 6 9 10;  member 1: 1 2 5 7 8
 *
 * Source: zhuzilin/ring-flash-attention zigzag_ring_flash_attn_varlen.py, where each document's length must divide by 2P. */
#include "model/context/context.h"

static bool same(int32_t a, int32_t b)
{
    return a == b || (a < 0 && b < 0);
}

static int64_t positions(int64_t seq, int size, int me, const int32_t *documents, int32_t *ret)
{
    int64_t count = 0, turn = 0;
    for (int64_t begin = 0, end; begin < seq; begin = end) {
        for (end = begin + 1; end < seq && (!documents || same(documents[end], documents[begin])); end++) continue;
        int64_t each = (end - begin) / (2 * size);
        int64_t runs[2] = {begin + each * me, begin + each * (2 * size - 1 - me)};
        for (int r = 0; r < 2; r++) {
            for (int64_t i = 0; i < each; i++, count++) {
                if (ret) ret[count] = (int32_t)(runs[r] + i);
            }
        }
        for (int64_t at = begin + 2 * size * each; at < end; at++, turn++) {
            if (turn % size != me) continue;
            if (ret) ret[count] = (int32_t)at;
            count++;
        }
    }
    return count;
}

const struct context_layout context_layout_document = {"document", true, positions};
