/* attention: softmax(q k^T / sqrt(D) + mask) v per sequence and head, with the log-sum-exp of each row.
 *
 * q, o [B, Q, H, D]; k, v [B, K, G, D]; query head h reads kv head h / (H / G); lse [B, H, Q]. Everything in
 * the storage type. Who sees whom: model/attention_view.h; queries and keys each have positions and documents of their
 * own, so that a block of keys may be any part of the sequence. Q or K may be 0. A row that sees nothing gives o = 0,
 * lse = -inf. With the lse and o of all keys, backward gives a block's part of dq, and its dk and dv.
 *
 * forward   s[i,j] = (sum_d q[i,d] k[j,d]) scale, scale = 1/sqrt(D);  m = max_j s;  e[j] = exp(s[i,j] - m)
 *           l = sum_j e;  o[i,d] = (sum_j e[j] v[j,d]) / l;  lse = m + log l
 * backward  (attention_backward.c; Dao et al. 2022, FlashAttention, without its blocks' rescaling)
 *           delta = sum_d do o;  p = exp(s - lse);  ds = p (sum_d do[i,d] v[j,d] - delta) scale, +0 where p = 0
 *           dq[i] = sum_j ds[i,j] k[j];  dk[j] = sum_i ds[i,j] q[i];  dv[j] = sum_i p[i,j] do[i]
 *
 * Order. Sums over d of two vectors in s and ds: a fused chain, d ascending. delta and l: 16 lanes (d or j in lane
 * d or j mod 16, ascending), then lanes_sum's tree. Sums over j (o, dq): a fused chain from +0, j ascending over the
 * keys that the query visits. Sums over i (dk, dv): a fused chain from +0, over the query heads of the kv head
 * ascending and in each over the queries that visit the key, ascending. A query visits from the first to the last key
 * that it sees; only where a document is interrupted by another are there keys in between that it does not see: their
 * e, p and ds are +0. So no number of an unseen key or query enters anywhere, and a
 * (sequence, head) has the same bits alone as in any batch. */
#include "model/kernels/attention.h"
#include "model/kernels/elementary.h"

static int64_t round_up(int64_t n, int64_t step)
{
    return (n + step - 1) / step * step;
}

size_t attention_scratch_split(struct attention_scratch *ret, int64_t seq, int64_t head_dim, void *memory)
{
    const int64_t seq_pad = round_up(seq, SEQ_PAD), head_pad = round_up(head_dim, HEAD_PAD);
    struct { real **at; int64_t count; } parts[] = {
        {&ret->k_panels, seq_pad * head_pad}, {&ret->v_panels, seq_pad * head_pad},
        {&ret->q, seq_pad * head_pad}, {&ret->k, seq_pad * head_pad}, {&ret->v, seq_pad * head_pad},
        {&ret->d_o, seq_pad * head_pad}, {&ret->dk, seq_pad * head_pad}, {&ret->dv, seq_pad * head_pad},
        {&ret->p, QUERY_BLOCK * seq_pad}, {&ret->ds, QUERY_BLOCK * seq_pad}, {&ret->rows, QUERY_BLOCK * head_pad},
    };
    int32_t **ranges[] = {&ret->mask.first, &ret->mask.last, &ret->mask.key_first, &ret->mask.key_last};
    const uintptr_t align = 64;
    uintptr_t start = (uintptr_t)memory, at = (start + align - 1) & ~(align - 1);
    ret->seq_pad = seq_pad;
    ret->head_pad = head_pad;
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        *parts[i].at = (real *)at; /* every part is a multiple of 16 numbers, so all are aligned */
        at += (uintptr_t)parts[i].count * sizeof(real);
    }
    for (size_t i = 0; i < sizeof(ranges) / sizeof(*ranges); i++) {
        *ranges[i] = (int32_t *)at;
        at += (uintptr_t)seq_pad * sizeof(int32_t);
    }
    return at - start + align;
}

size_t FN(attention_scratch)(int64_t seq, int64_t head_dim)
{
    struct attention_scratch ignored;
    return attention_scratch_split(&ignored, seq, head_dim, NULL);
}

void attention_round(const struct attention_scratch *s, real *values, int64_t count)
{
    enum format storage = sizeof(real) == 8 ? FORMAT_FP64 : FORMAT_FP32;
    if (format_traits[s->softmax].significand_bits >= format_traits[storage].significand_bits)
        return;
    if (format_traits[s->softmax].storage == storage) {
        format_round_array(s->softmax, values, (size_t)count);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        values[i] = (real)format_round(s->softmax, (double)values[i]);
}

/* Rows of one sequence: what they see is told by their positions and documents. */
struct side { int64_t count; const int32_t *positions, *documents; };

static int64_t position(const struct side *side, int64_t i)
{
    return side->positions ? side->positions[i] : i;
}

/* For each row of `from`, from the first to past the last row of `to` that sees it or is seen by it: of the same document, at a
 * position from `before` less to `after` more. Returns whether a document comes back, so that there are others in between. */
static bool visited_ranges(const struct side *from, const struct side *to, int64_t before, int64_t after, int32_t *ret_first,
                           int32_t *ret_last)
{
    int32_t low = 0, high = 0, begin = 0, end = (int32_t)to->count; /* by positions; of the row's document */
    bool gaps = false;
    for (int64_t i = 0; i < from->count; i++) {
        const int64_t here = position(from, i);
        ASSERT(i == 0 || here >= position(from, i - 1));
        while (low < to->count && position(to, low) < here - before)
            low++;
        while (high < to->count && position(to, high) <= here + after)
            high++;
        if (from->documents && (i == 0 || from->documents[i] != from->documents[i - 1])) {
            begin = 0, end = from->documents[i] < 0 ? 0 : (int32_t)to->count;
            while (begin < end && to->documents[begin] != from->documents[i])
                begin++;
            while (begin < end && to->documents[end - 1] != from->documents[i])
                end--;
        }
        int32_t first = low > begin ? low : begin, last = high < end ? high : end;
        while (from->documents && first < last && to->documents[first] != from->documents[i])
            first++;
        while (from->documents && first < last && to->documents[last - 1] != from->documents[i])
            last--;
        for (int32_t j = first; from->documents && j < last && !gaps; j++)
            gaps = to->documents[j] != from->documents[i];
        ret_first[i] = first < last ? first : 0;
        ret_last[i] = first < last ? last : 0;
    }
    return gaps;
}

void attention_mask_set(struct attention_mask *mask, const struct attention_view *view, int64_t b, int64_t queries, int64_t keys)
{
    const int64_t all = INT64_C(1) << 40, before = view->window > 0 ? view->window - 1 : all, after = view->causal ? 0 : before;
    const struct side q = {queries, view->q_positions ? view->q_positions + b * queries : NULL,
                           view->q_documents ? view->q_documents + b * queries : NULL};
    const struct side k = {keys, view->k_positions ? view->k_positions + b * keys : NULL,
                           view->k_documents ? view->k_documents + b * keys : NULL};
    ASSERT(!view->q_documents == !view->k_documents && view->window >= 0);
    mask->q_documents = q.documents;
    mask->k_documents = k.documents;
    bool gaps = visited_ranges(&q, &k, before, after, mask->first, mask->last);
    mask->gaps = visited_ranges(&k, &q, after, before, mask->key_first, mask->key_last) || gaps;
}

void attention_pack_panels(real *panels, const real *x, int64_t stride, int64_t seq, int64_t head_dim)
{
    for (int64_t j = 0; j < seq; j += PANEL)
        tile_pack(panels + j * head_dim, PANEL, true, head_dim, seq - j < PANEL ? seq - j : PANEL, x + j * stride, stride);
}

void attention_pack_rows(real *rows, int64_t head_pad, const real *x, int64_t stride, int64_t seq, int64_t head_dim)
{
    for (int64_t i = 0; i < seq; i++)
        for (int64_t d = 0; d < head_pad; d += VEC_WIDTH)
            vec_store(rows + i * head_pad + d, vec_load_part(x + i * stride + (d < head_dim ? d : 0), head_dim - d));
}

void attention_scores(const struct attention_scratch *s, real *out, int64_t rows, const real *x, int64_t stride,
                      const real *panels, int64_t head_dim, int64_t low, int64_t high)
{
    for (int64_t j = low / PANEL * PANEL; j < high; j += PANEL)
        tile_strip(&(struct strip){.rows = rows, .columns = PANEL, .k = head_dim, .a = x, .lda = stride,
                                   .b = panels + j * head_dim, .ldb = PANEL, .c = out + j, .ldc = s->seq_pad});
}

void attention_product(const struct attention_scratch *s, real *c, int64_t rows, const real *a, bool a_transposed,
                       const real *b, int64_t head_dim, const int32_t *first, const int32_t *last, int64_t low,
                       int64_t high)
{
    for (int64_t d = 0; d < head_dim; d += PANEL)
        tile_strip(&(struct strip){.a_transposed = a_transposed, .accumulate = true, .rows = rows, .k = high - low,
                                   .columns = head_dim - d < PANEL ? head_dim - d : PANEL, .a = a, .lda = s->seq_pad,
                                   .b = b + d, .ldb = s->head_pad, .c = c + d, .ldc = s->head_pad,
                                   .first = first, .last = last, .offset = low});
}

/* The keys that some of the queries [i, i + rows) visit; low = high = 0 if none. */
void attention_visited(const struct attention_mask *mask, int64_t i, int64_t rows, int64_t *ret_low, int64_t *ret_high)
{
    int64_t low = INT64_MAX, high = 0;
    for (int64_t r = i; r < i + rows; r++)
        if (mask->last[r] > mask->first[r]) {
            low = mask->first[r] < low ? mask->first[r] : low;
            high = mask->last[r] > high ? mask->last[r] : high;
        }
    *ret_low = high ? low : 0;
    *ret_high = high;
}

/* Turn raw scores of queries [i, i + rows) into e = exp(s - m), +0 for keys that are not seen, with m and l.
 * [low, high) contains what the queries visit; whole groups of LANES around it are done: lanes that are not seen add
 * +0. Keys outside, rows inside: the rows' long chains of operations overlap. */
static void softmax_rows(const struct attention_scratch *s, int64_t i, int64_t rows, real scale, int64_t low,
                         int64_t high, real shifts[LANES], real totals[LANES])
{
    const struct attention_mask *mask = &s->mask;
    const vec unseen = vec_set((real)-__builtin_inf()), by = vec_set(scale);
    vec largest[LANES][LANE_VECS], sums[LANES][LANE_VECS];
    ivec lane;
    for (int l = 0; l < VEC_WIDTH; l++)
        lane[l] = l;
    for (int64_t r = 0; r < rows; r++) {
        for (int l = 0; l < LANE_VECS; l++)
            largest[r][l] = unseen, sums[r][l] = vec_set(0);
        real *row = s->p + r * s->seq_pad;
        if (mask->gaps)
            for (int64_t j = low; j < high; j++)
                row[j] = mask->k_documents[j] == mask->q_documents[i + r] ? row[j] : unseen[0];
    }
    for (int64_t j = low / LANES * LANES; j < high; j += LANES)
        for (int64_t r = 0; r < rows; r++)
            for (int l = 0; l < LANE_VECS; l++) {
                real *at = s->p + r * s->seq_pad + j + l * VEC_WIDTH;
                const ivec key = lane + (int32_t)(j + l * VEC_WIDTH);
                const ivec seen = (ivec)(key >= mask->first[i + r]) & (ivec)(key < mask->last[i + r]);
                vec score = vec_select(seen, vec_load(at) * by, unseen);
                vec_store(at, score);
                largest[r][l] = vec_max(largest[r][l], score);
            }
    const int64_t start = low / LANES * LANES, length = (high - start + LANES - 1) / LANES * LANES;
    for (int64_t r = 0; r < rows; r++) {
        shifts[r] = lanes_max(largest[r]);
        attention_round(s, &shifts[r], 1); /* rounding keeps the order, so this is the largest of the rounded */
        attention_round(s, s->p + r * s->seq_pad + start, length);
    }
    for (int64_t j = low / LANES * LANES; j < high; j += LANES)
        for (int64_t r = 0; r < rows; r++)
            for (int l = 0; l < LANE_VECS; l++) {
                real *at = s->p + r * s->seq_pad + j + l * VEC_WIDTH;
                vec e = vec_exp(vec_load(at) - vec_set(shifts[r]));
                vec_store(at, e);
            }
    for (int64_t r = 0; r < rows; r++)
        attention_round(s, s->p + r * s->seq_pad + start, length);
    for (int64_t j = start; j < high; j += LANES)
        for (int64_t r = 0; r < rows; r++)
            for (int l = 0; l < LANE_VECS; l++)
                sums[r][l] += vec_load(s->p + r * s->seq_pad + j + l * VEC_WIDTH);
    for (int64_t r = 0; r < rows; r++)
        totals[r] = lanes_sum(sums[r]);
}

/* Queries [i, i + rows) of one head; q and o point at query i. */
static void forward_rows(const struct attention_scratch *s, int64_t i, int64_t rows, const real *q, real *o,
                         int64_t stride, int64_t head_dim, real scale, real *lse)
{
    const int32_t *first = s->mask.first + i, *last = s->mask.last + i;
    int64_t low, high;
    attention_visited(&s->mask, i, rows, &low, &high);
    attention_scores(s, s->p, rows, q, stride, s->k_panels, head_dim, low, high);
    real totals[LANES], shifts[LANES]; /* TILE_ROWS <= LANES; the rest only fills vectors */
    for (int64_t r = 0; r < LANES; r++)
        totals[r] = 1, shifts[r] = 0;
    softmax_rows(s, i, rows, scale, low, high, shifts, totals);
    for (int64_t r = 0; r < rows; r++) /* what sees nothing: o = 0 / 1, lse = -inf + log 1 */
        if (first[r] >= last[r])
            totals[r] = 1, shifts[r] = (real)-__builtin_inf();
    for (int64_t r = 0; r < rows; r += VEC_WIDTH)
        vec_store_part(lse + r, vec_load(shifts + r) + vec_log(vec_load(totals + r)), rows - r);
    memset(s->rows, 0, (size_t)(rows * s->head_pad) * sizeof(real));
    attention_product(s, s->rows, rows, s->p + low, false, s->v + low * s->head_pad, head_dim, first, last, low, high);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t d = 0; d < head_dim; d += VEC_WIDTH)
            vec_store_part(o + r * stride + d, vec_load(s->rows + r * s->head_pad + d) / vec_set(totals[r]),
                           head_dim - d);
}

void FN(attention_forward)(struct tensor o, struct tensor lse, struct tensor q, struct tensor k, struct tensor v,
                           const struct attention_view *view, enum format softmax, void *scratch)
{
    const int64_t batch = q.shape[0], queries = q.shape[1], heads = q.shape[2], dim = q.shape[3];
    const int64_t keys = k.shape[1], kv_heads = k.shape[2], stride = heads * dim, kv_stride = kv_heads * dim;
    const real *q_at = reals(q), *k_at = reals(k), *v_at = reals(v), scale = attention_scale(view, dim);
    real *out = reals(o), *lses = reals(lse);
    ASSERT(q.dims == 4 && k.dims == 4 && kv_heads > 0 && heads % kv_heads == 0);
    ASSERT(tensor_count(k) == batch * keys * kv_stride && tensor_count(v) == tensor_count(k));
    ASSERT(tensor_count(o) == tensor_count(q) && tensor_count(lse) == batch * heads * queries);
    struct attention_scratch s;
    attention_scratch_split(&s, queries > keys ? queries : keys, dim, scratch);
    s.softmax = softmax;
    for (int64_t b = 0; b < batch; b++) {
        attention_mask_set(&s.mask, view, b, queries, keys);
        for (int64_t g = 0; g < kv_heads; g++) {
            const int64_t kv = b * keys * kv_stride + g * dim;
            attention_pack_panels(s.k_panels, k_at + kv, kv_stride, keys, dim);
            attention_pack_rows(s.v, s.head_pad, v_at + kv, kv_stride, keys, dim);
            for (int64_t h = g * (heads / kv_heads); h < (g + 1) * (heads / kv_heads); h++)
                for (int64_t i = 0; i < queries; i += TILE_ROWS) {
                    const int64_t rows = queries - i < TILE_ROWS ? queries - i : TILE_ROWS;
                    const int64_t at = (b * queries + i) * stride + h * dim;
                    forward_rows(&s, i, rows, q_at + at, out + at, stride, dim, scale,
                                 lses + (b * heads + h) * queries + i);
                }
        }
    }
}
