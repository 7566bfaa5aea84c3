/* attention: what its forward and backward share. See attention.c. */
#ifndef MODEL_KERNELS_ATTENTION_H
#define MODEL_KERNELS_ATTENTION_H

#include "model/kernels/tile.h"

/* Queries are done in blocks, so that scratch grows with seq and not with its square. */
enum { QUERY_BLOCK = 64, SEQ_PAD = 32, HEAD_PAD = 16 };

/* Query i visits keys first[i] <= j < last[i]; key j is visited by queries key_first[j] <= i < key_last[j].
 * gaps: a document comes back after another one, so that what lies in between must be told apart one by one. */
struct attention_mask {
    int32_t *first, *last, *key_first, *key_last;
    const int32_t *q_documents, *k_documents; /* of this sequence; NULL: one document */
    bool gaps;
};

/* Memory of one call, for one head at a time; numbers in rows of head_pad, scores in rows of seq_pad. */
struct attention_scratch {
    int64_t seq_pad, head_pad;
    real *k_panels, *v_panels; /* transposed: [panel of keys][head_dim][PANEL] */
    real *q, *k, *v, *d_o;     /* [seq_pad, head_pad] */
    real *dk, *dv;
    real *p, *ds;              /* [QUERY_BLOCK, seq_pad] */
    real *rows;                /* [QUERY_BLOCK, head_pad]: o or dq of a block */
    struct attention_mask mask;
    enum format softmax;       /* what scores and probabilities are rounded to */
};

#define attention_scratch_split FN(attention_scratch_split)
#define attention_mask_set FN(attention_mask_set)
#define attention_visited FN(attention_visited)
#define attention_pack_panels FN(attention_pack_panels)
#define attention_pack_rows FN(attention_pack_rows)
#define attention_scores FN(attention_scores)
#define attention_product FN(attention_product)
#define attention_round FN(attention_round)

/* Lay the buffers into `memory`; with NULL only count. Returns the bytes. seq: the larger number of rows. */
size_t attention_scratch_split(struct attention_scratch *ret, int64_t seq, int64_t head_dim, void *memory);
/* Rounds to s->softmax in place; nothing where that is no narrower than `real`. */
void attention_round(const struct attention_scratch *s, real *values, int64_t count);
/* Of sequence b. */
void attention_mask_set(struct attention_mask *mask, const struct attention_view *view, int64_t b, int64_t queries, int64_t keys);
/* What scores are multiplied by. */
static inline real attention_scale(const struct attention_view *view, int64_t head_dim)
{
    return (real)(view->scale != 0 ? view->scale : 1 / __builtin_sqrt((double)head_dim));
}
void attention_visited(const struct attention_mask *mask, int64_t i, int64_t rows, int64_t *ret_low, int64_t *ret_high);
void attention_pack_panels(real *panels, const real *x, int64_t stride, int64_t seq, int64_t head_dim);
void attention_pack_rows(real *rows, int64_t head_pad, const real *x, int64_t stride, int64_t seq, int64_t head_dim);

/* out[r, j] = sum_d x[r, d] panels(d, j), d ascending from +0, for whole panels covering keys [low, high). */
void attention_scores(const struct attention_scratch *s, real *out, int64_t rows, const real *x, int64_t stride,
                      const real *panels, int64_t head_dim, int64_t low, int64_t high);

/* c[r, :] += sum over p in [first[r], last[r]) and [low, high) of a(r, p - low) b[p - low, :], p ascending, one fused
 * chain. a(r, p) is a[r * seq_pad + p], or a[p * seq_pad + r] if transposed. b and c have rows of head_pad. */
void attention_product(const struct attention_scratch *s, real *c, int64_t rows, const real *a, bool a_transposed,
                       const real *b, int64_t head_dim, const int32_t *first, const int32_t *last, int64_t low,
                       int64_t high);

#endif
