/* attention_backward: the gradients of attention. Formulas and order of sums: attention.c. */
#include "model/kernels/attention.h"
#include "model/kernels/elementary.h"

/* sum_d a[d] b[d]: 16 lanes, then the tree */
static real dot(const real *a, const real *b, int64_t dim)
{
    vec sums[LANE_VECS] = {{0}};
    for (int64_t d = 0; d < dim; d += LANES)
        for (int l = 0; l < LANE_VECS; l++) {
            const int64_t at = d + l * VEC_WIDTH;
            sums[l] = vec_fma(vec_load_part(a + at, dim - at), vec_load_part(b + at, dim - at), sums[l]);
        }
    return lanes_sum(sums);
}

/* Queries [i, i + rows): raw scores in p become p, sum_d do v in ds becomes ds, for the keys in [low, high) and up to
 * the ends of the vectors that hold them; what a query does not visit is garbage. */
static void gradient_rows(const struct attention_scratch *s, int64_t i, int64_t rows, real *p, real *ds, real scale,
                          const real *lse, const real *delta, int64_t low, int64_t high)
{
    const struct attention_mask *mask = &s->mask;
    const vec zero = vec_set(0), by = vec_set(scale);
    const int64_t start = low / VEC_WIDTH * VEC_WIDTH, length = (high - start + VEC_WIDTH - 1) / VEC_WIDTH * VEC_WIDTH;
    for (int64_t j = low / VEC_WIDTH * VEC_WIDTH; j < high; j += VEC_WIDTH)
        for (int64_t r = 0; r < rows; r++) {
            real *p_at = p + r * s->seq_pad + j;
            vec_store(p_at, vec_load(p_at) * by);
        }
    for (int64_t r = 0; r < rows; r++)
        attention_round(s, p + r * s->seq_pad + start, length);
    for (int64_t j = start; j < high; j += VEC_WIDTH)
        for (int64_t r = 0; r < rows; r++) {
            real *p_at = p + r * s->seq_pad + j;
            vec_store(p_at, vec_exp(vec_load(p_at) - vec_set(lse[r])));
        }
    for (int64_t r = 0; r < rows; r++)
        attention_round(s, p + r * s->seq_pad + start, length);
    for (int64_t j = start; j < high; j += VEC_WIDTH)
        for (int64_t r = 0; r < rows; r++) {
            real *p_at = p + r * s->seq_pad + j, *ds_at = ds + r * s->seq_pad + j;
            vec prob = vec_load(p_at), grad = prob * (vec_load(ds_at) - vec_set(delta[r])) * by;
            vec_store(ds_at, vec_select((ivec)(prob == zero), zero, grad));
        }
    for (int64_t r = 0; r < rows; r++)
        attention_round(s, ds + r * s->seq_pad + start, length);
    if (!mask->gaps)
        return;
    /* a key's range of queries may now hold one that does not see the key */
    for (int64_t r = 0; r < rows; r++, i++, p += s->seq_pad, ds += s->seq_pad)
        for (int64_t j = 0; j < s->seq_pad; j++)
            if (j < mask->first[i] || j >= mask->last[i] || mask->k_documents[j] != mask->q_documents[i])
                p[j] = ds[j] = 0;
}

struct head {
    int64_t dim, stride;           /* of positions in q, o, dq */
    const real *q, *d_o, *o, *lse; /* at this (sequence, query head) */
    real *dq;
    real scale;
};

/* Queries [i, i + rows) of one head: p and ds, then their share of dq, dk, dv. */
static void backward_block(const struct attention_scratch *s, const struct head *head, int64_t i, int64_t rows)
{
    const struct attention_mask *mask = &s->mask;
    const int64_t pad = s->head_pad, dim = head->dim;
    for (int64_t row = i; row < i + rows; row += TILE_ROWS) {
        const int64_t count = i + rows - row < TILE_ROWS ? i + rows - row : TILE_ROWS;
        real *p = s->p + (row - i) * s->seq_pad, *ds = s->ds + (row - i) * s->seq_pad, *dq = s->rows + (row - i) * pad;
        int64_t low, high;
        attention_visited(mask, row, count, &low, &high);
        attention_scores(s, p, count, s->q + row * pad, pad, s->k_panels, dim, low, high);
        attention_scores(s, ds, count, s->d_o + row * pad, pad, s->v_panels, dim, low, high);
        real delta[LANES];
        for (int64_t r = 0; r < count; r++)
            delta[r] = dot(s->d_o + (row + r) * pad, head->o + (row + r) * head->stride, dim);
        gradient_rows(s, row, count, p, ds, head->scale, head->lse + row, delta, low, high);
        memset(dq, 0, (size_t)(count * pad) * sizeof(real));
        attention_product(s, dq, count, ds + low, false, s->k + low * pad, dim, mask->first + row, mask->last + row,
                          low, high);
        for (int64_t r = 0; r < count; r++)
            for (int64_t d = 0; d < dim; d += VEC_WIDTH)
                vec_store_part(head->dq + (row + r) * head->stride + d, vec_load(dq + r * pad + d), dim - d);
    }
    int64_t low, high; /* the keys that this block visits */
    attention_visited(mask, i, rows, &low, &high);
    attention_product(s, s->dv + low * pad, high - low, s->p + low, true, s->d_o + i * pad, dim, mask->key_first + low,
                      mask->key_last + low, i, i + rows);
    attention_product(s, s->dk + low * pad, high - low, s->ds + low, true, s->q + i * pad, dim, mask->key_first + low,
                      mask->key_last + low, i, i + rows);
}

void FN(attention_backward)(struct tensor dq, struct tensor dk, struct tensor dv, struct tensor d_o, struct tensor q,
                            struct tensor k, struct tensor v, struct tensor o, struct tensor lse,
                            const struct attention_view *view, enum format softmax, void *scratch)
{
    const int64_t batch = q.shape[0], queries = q.shape[1], heads = q.shape[2], dim = q.shape[3], keys = k.shape[1];
    const int64_t kv_heads = k.shape[2], stride = heads * dim, kv_stride = kv_heads * dim;
    const int64_t group = kv_heads > 0 ? heads / kv_heads : 0;
    const real *q_at = reals(q), *k_at = reals(k), *v_at = reals(v), *outs = reals(o), *grads = reals(d_o);
    const real *lses = reals(lse);
    real *dqs = reals(dq), *dks = reals(dk), *dvs = reals(dv);
    ASSERT(q.dims == 4 && k.dims == 4 && kv_heads > 0 && heads % kv_heads == 0);
    ASSERT(tensor_count(k) == batch * keys * kv_stride && tensor_count(v) == tensor_count(k));
    ASSERT(tensor_count(dk) == tensor_count(k) && tensor_count(dv) == tensor_count(k) &&
           tensor_count(dq) == tensor_count(q));
    ASSERT(tensor_count(o) == tensor_count(q) && tensor_count(d_o) == tensor_count(q));
    ASSERT(tensor_count(lse) == batch * heads * queries);
    struct attention_scratch s;
    attention_scratch_split(&s, queries > keys ? queries : keys, dim, scratch);
    s.softmax = softmax;
    for (int64_t b = 0; b < batch; b++) {
        attention_mask_set(&s.mask, view, b, queries, keys);
        for (int64_t g = 0; g < kv_heads; g++) {
            const int64_t kv = b * keys * kv_stride + g * dim;
            attention_pack_panels(s.k_panels, k_at + kv, kv_stride, keys, dim);
            attention_pack_panels(s.v_panels, v_at + kv, kv_stride, keys, dim);
            attention_pack_rows(s.k, s.head_pad, k_at + kv, kv_stride, keys, dim);
            memset(s.dk, 0, (size_t)(keys * s.head_pad) * sizeof(real));
            memset(s.dv, 0, (size_t)(keys * s.head_pad) * sizeof(real));
            for (int64_t h = g * group; h < (g + 1) * group; h++) {
                const int64_t at = b * queries * stride + h * dim;
                const struct head head = {.dim = dim, .stride = stride,
                                          .q = q_at + at, .d_o = grads + at, .o = outs + at, .dq = dqs + at,
                                          .lse = lses + (b * heads + h) * queries, .scale = attention_scale(view, dim)};
                attention_pack_rows(s.q, s.head_pad, head.q, stride, queries, dim);
                attention_pack_rows(s.d_o, s.head_pad, head.d_o, stride, queries, dim);
                for (int64_t i = 0; i < queries; i += QUERY_BLOCK)
                    backward_block(&s, &head, i, queries - i < QUERY_BLOCK ? queries - i : QUERY_BLOCK);
            }
            for (int64_t j = 0; j < keys; j++)
                for (int64_t d = 0; d < dim; d += VEC_WIDTH) {
                    vec_store_part(dks + kv + j * kv_stride + d, vec_load(s.dk + j * s.head_pad + d), dim - d);
                    vec_store_part(dvs + kv + j * kv_stride + d, vec_load(s.dv + j * s.head_pad + d), dim - d);
                }
        }
    }
}
