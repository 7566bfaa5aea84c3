/* tile: see tile.h. */
#include "model/kernels/tile.h"

/* ---- tiles whose rows take part in different parts of k ---- */

/* sums += A[:, p from .. to-1] B[p, :], all of it known to the compiler but the depth, so that `sums` lives in
 * registers. masked: row i takes part for first[i] <= p < last[i]. */
SIMD_SPECIALIZE void tile_depth(const int rows, const int vecs, const bool a_transposed, const bool masked,
                            vec sums[12][2], const struct strip *strip, int64_t row, int64_t from, int64_t to)
{
    const int64_t step_row = a_transposed ? 1 : strip->lda, step_k = a_transposed ? strip->lda : 1, ldb = strip->ldb;
    const real *a = strip->a + row * step_row + from * step_k, *b = strip->b + from * ldb;
    for (int64_t p = from; p < to; p++) {
        vec right[2];
        SIMD_UNROLL(2)
        for (int v = 0; v < vecs; v++)
            right[v] = vec_load(b + v * VEC_WIDTH);
        SIMD_UNROLL(12)
        for (int i = 0; i < rows; i++) {
            const vec left = vec_set(a[i * step_row]);
            const int64_t at = p + strip->offset;
            const bool in = !masked || (strip->first[row + i] <= at && at < strip->last[row + i]);
            const ivec mask = (ivec){0} - (in ? 1 : 0);
            SIMD_UNROLL(2)
            for (int v = 0; v < vecs; v++) {
                vec sum = vec_fma(left, right[v], sums[i][v]);
                sums[i][v] = masked ? vec_select(mask, sum, sums[i][v]) : sum;
            }
        }
        a += step_k;
        b += ldb;
    }
}

/* One tile of rows from `row` on. */
SIMD_SPECIALIZE void ranged(const int rows, const int vecs, const bool a_transposed, const struct strip *strip, int64_t row)
{
    const int64_t k = strip->k, ldc = strip->ldc, last = strip->columns - (vecs - 1) * VEC_WIDTH;
    real *c = strip->c + row * ldc;
    vec sums[12][2];
    SIMD_UNROLL(12)
    for (int i = 0; i < rows; i++)
        SIMD_UNROLL(2)
        for (int v = 0; v < vecs; v++)
            sums[i][v] = !strip->accumulate ? vec_set(0) : v + 1 < vecs ? vec_load(c + i * ldc)
                                                          : vec_load_part(c + i * ldc + v * VEC_WIDTH, last);
    /* what all rows take part in needs no masks */
    int64_t low = k, high = 0, common_low = 0, common_high = k;
    for (int i = 0; i < rows; i++) {
        int64_t from = strip->first[row + i] - strip->offset, to = strip->last[row + i] - strip->offset;
        from = from < 0 ? 0 : from;
        to = to > k ? k : to;
        low = from < low ? from : low;
        high = to > high ? to : high;
        common_low = from > common_low ? from : common_low;
        common_high = to < common_high ? to : common_high;
    }
    if (common_low >= common_high)
        common_low = common_high = low;
    tile_depth(rows, vecs, a_transposed, true, sums, strip, row, low, common_low);
    tile_depth(rows, vecs, a_transposed, false, sums, strip, row, common_low, common_high);
    tile_depth(rows, vecs, a_transposed, true, sums, strip, row, common_high, high);
    SIMD_UNROLL(12)
    for (int i = 0; i < rows; i++)
        SIMD_UNROLL(2)
        for (int v = 0; v < vecs; v++)
            if (v + 1 < vecs)
                vec_store(c + i * ldc, sums[i][v]);
            else
                vec_store_part(c + i * ldc + v * VEC_WIDTH, sums[i][v], last);
}

/* A tile's shape as a function: rows, vectors, layout of A. */
#define RANGED_FUNCTION(rows, vecs, layout) \
    static void ranged_##rows##_##vecs##_##layout(const struct strip *strip, int64_t row) \
    { \
        ranged(rows, vecs, layout, strip, row); \
    }
#define RANGED(rows) \
    RANGED_FUNCTION(rows, 1, 0) RANGED_FUNCTION(rows, 2, 0) RANGED_FUNCTION(rows, 1, 1) RANGED_FUNCTION(rows, 2, 1)
#define RANGED_LINE(rows) \
    {rows, {{ranged_##rows##_1_0, ranged_##rows##_1_1}, {ranged_##rows##_2_0, ranged_##rows##_2_1}}},

#if SIMD_LEVEL == 2
#define RANGED_TILES(X) X(12) X(8) X(4) X(2) X(1)
#elif SIMD_LEVEL == 1
#define RANGED_TILES(X) X(6) X(4) X(2) X(1)
#else
#define RANGED_TILES(X) X(4) X(2) X(1)
#endif
RANGED_TILES(RANGED)

static const struct {
    int rows;
    void (*run[2][2])(const struct strip *, int64_t row); /* [two vectors][A transposed] */
} ranged_tiles[] = {RANGED_TILES(RANGED_LINE)};

static void strip_ranged(const struct strip *strip)
{
    int64_t row = 0;
    for (int t = 0; row < strip->rows; t++) {
        void (*run)(const struct strip *, int64_t) = ranged_tiles[t].run[strip->columns > VEC_WIDTH][strip->a_transposed];
        for (; row + ranged_tiles[t].rows <= strip->rows; row += ranged_tiles[t].rows)
            run(strip, row);
    }
}

/* ---- tiles all of whose rows take part in all of k ---- */

/* Keeps the compiler from computing the address of every row of C ahead, which takes longer than a small tile. */
#define TILE_STEP(pointer) __asm__("" : "+r"(pointer))

/* How a tile finds A: in rows, in columns (transposed), or packed beside a packed panel of B. */
enum tile_layout { TILE_ROWS_OF_A, TILE_COLUMNS_OF_A, TILE_PACKED };

/* edge: the last vector of B and C has fewer columns. A tile of 14 x 2 vectors fills the 32 registers of AVX-512 with
 * its sums, two of B and one number of A. Rows of A as it lies are reached from every third of them, as a processor
 * adds one or two times lda to an address for free. */
enum { TILE_UNROLL = SIMD_LEVEL > 0 ? 4 : 1, TILE_GROUPS = (TILE_ROWS_NARROW + 2) / 3 };

/* One number of k. */
SIMD_SPECIALIZE void tile_step(const int rows, const int vecs, const enum tile_layout layout, const bool edge,
                               vec sums[TILE_ROWS_NARROW][2], const real *a[TILE_GROUPS], const real **b, int64_t lda,
                               int64_t ldb, vec_mask mask)
{
    vec right[2];
    SIMD_UNROLL(2)
    for (int v = 0; v < vecs; v++)
        right[v] = edge && v == vecs - 1 ? vec_load_mask(*b + v * VEC_WIDTH, mask) : vec_load(*b + v * VEC_WIDTH);
    SIMD_UNROLL(16)
    for (int i = 0; i < rows; i++) {
        const vec left = vec_set(layout == TILE_ROWS_OF_A ? a[i / 3][i % 3 * lda] : a[0][i]);
        SIMD_UNROLL(2)
        for (int v = 0; v < vecs; v++)
            sums[i][v] = vec_fma(left, right[v], sums[i][v]);
    }
    SIMD_UNROLL(6)
    for (int g = 0; g < (rows + 2) / 3; g++)
        a[g] += layout == TILE_ROWS_OF_A ? 1 : lda;
    *b += ldb;
}

SIMD_SPECIALIZE void tile(const int rows, const int vecs, const enum tile_layout layout, const bool edge,
                          const struct strip *strip, int64_t row)
{
    const int64_t k = strip->k, ldc = strip->ldc, lda = layout == TILE_PACKED ? TILE_STRIDE : strip->lda;
    const int64_t ldb = layout == TILE_PACKED ? PANEL : strip->ldb;
    const int64_t last = strip->columns - (vecs - 1) * VEC_WIDTH;
    const vec_mask mask = mask_first(edge ? last : 0);
    const real *a[TILE_GROUPS], *b = strip->b;
    real *c = strip->c + row * ldc;
    vec sums[TILE_ROWS_NARROW][2];
    if (strip->accumulate) {
        SIMD_UNROLL(16)
        for (int i = 0; i < rows; i++) {
            SIMD_UNROLL(2)
            for (int v = 0; v < vecs; v++)
                sums[i][v] = edge && v == vecs - 1 ? vec_load_mask(c + v * VEC_WIDTH, mask) : vec_load(c + v * VEC_WIDTH);
            c += ldc;
            TILE_STEP(c);
        }
        c = strip->c + row * ldc;
    } else {
        SIMD_UNROLL(16)
        for (int i = 0; i < rows; i++)
            SIMD_UNROLL(2)
            for (int v = 0; v < vecs; v++)
                sums[i][v] = vec_set(0);
    }
    SIMD_UNROLL(6)
    for (int g = 0; g < (rows + 2) / 3; g++)
        a[g] = layout == TILE_ROWS_OF_A ? strip->a + (row + 3 * g) * lda : strip->a + row + 3 * g;
    int64_t p = 0;
    if (layout != TILE_PACKED)
        for (; p + TILE_UNROLL <= k; p += TILE_UNROLL)
            SIMD_UNROLL(4)
            for (int u = 0; u < TILE_UNROLL; u++)
                tile_step(rows, vecs, layout, edge, sums, a, &b, lda, ldb, mask);
    for (; p < k; p++)
        tile_step(rows, vecs, layout, edge, sums, a, &b, lda, ldb, mask);
    SIMD_UNROLL(16)
    for (int i = 0; i < rows; i++) {
        SIMD_UNROLL(2)
        for (int v = 0; v < vecs; v++)
            if (edge && v == vecs - 1)
                vec_store_mask(c + v * VEC_WIDTH, sums[i][v], mask);
            else
                vec_store(c + v * VEC_WIDTH, sums[i][v]);
        c += ldc;
        TILE_STEP(c);
    }
}

#define TILE_FUNCTION(rows, vecs, layout, edge) \
    static void tile_##rows##_##vecs##_##layout##_##edge(const struct strip *strip, int64_t row) \
    { \
        tile(rows, vecs, (enum tile_layout)layout, edge, strip, row); \
    }
#define TILE_SHAPE(rows, vecs) \
    TILE_FUNCTION(rows, vecs, 0, 0) TILE_FUNCTION(rows, vecs, 0, 1) TILE_FUNCTION(rows, vecs, 1, 0) \
    TILE_FUNCTION(rows, vecs, 1, 1) TILE_FUNCTION(rows, vecs, 2, 0) TILE_FUNCTION(rows, vecs, 2, 1)
#define TILE(rows) TILE_SHAPE(rows, 1) TILE_SHAPE(rows, 2)
#define TILE_NARROW(rows) TILE_SHAPE(rows, 1)
#define TILE_LAYOUT(rows, vecs, layout) {tile_##rows##_##vecs##_##layout##_0, tile_##rows##_##vecs##_##layout##_1}
#define TILE_SHAPE_LINE(rows, vecs) {TILE_LAYOUT(rows, vecs, 0), TILE_LAYOUT(rows, vecs, 1), TILE_LAYOUT(rows, vecs, 2)}
#define TILE_LINE(rows) {TILE_SHAPE_LINE(rows, 1), TILE_SHAPE_LINE(rows, 2)},
#define TILE_NARROW_LINE(rows) {TILE_SHAPE_LINE(rows, 1)},

#if SIMD_LEVEL == 2
#define TILES(X, NARROW) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) NARROW(15) NARROW(16)
#elif SIMD_LEVEL == 1
#define TILES(X, NARROW) X(1) X(2) X(3) X(4) X(5) X(6) NARROW(7) NARROW(8)
#else
#define TILES(X, NARROW) X(1) X(2) X(3) X(4)
#endif
TILES(TILE, TILE_NARROW)

/* [rows - 1][two vectors][layout][edge] */
static void (*const tiles[TILE_ROWS_NARROW][2][3][2])(const struct strip *, int64_t row) = {
    TILES(TILE_LINE, TILE_NARROW_LINE)};

void tile_strip(const struct strip *strip)
{
    if (strip->first) {
        strip_ranged(strip);
        return;
    }
    const bool two = strip->columns > VEC_WIDTH, edge = strip->columns % VEC_WIDTH != 0;
    for (int64_t row = 0, rows; row < strip->rows; row += rows) {
        rows = tile_rows(strip->rows - row, two ? TILE_ROWS_MAX : TILE_ROWS_NARROW);
        if (strip->accumulate) /* the next tile begins with its part of C */
            for (int64_t next = row + rows; next < row + 2 * rows && next < strip->rows; next++) {
                __builtin_prefetch(strip->c + next * strip->ldc, 1);
                __builtin_prefetch(strip->c + next * strip->ldc + strip->columns - 1, 1);
            }
        tiles[rows - 1][two][strip->a_transposed ? TILE_COLUMNS_OF_A : TILE_ROWS_OF_A][edge](strip, row);
    }
}

void tile_packed(const struct strip *strip)
{
    tiles[strip->rows - 1][strip->columns > VEC_WIDTH][TILE_PACKED][strip->columns % VEC_WIDTH != 0](strip, 0);
}

/* ---- packing ---- */

/* The first `count` of PART numbers at `from`, +0 for the rest. */
#if SIMD_LEVEL > 0
enum { PART = 16 / sizeof(real) };
SIMD_INLINE __m128i load_piece(const real *from, int64_t count)
{
    if (count >= PART)
        return _mm_loadu_si128((const void *)from);
#if VARIANT_BITS == 32
    return _mm_castps_si128(_mm_maskload_ps(from, _mm_cmpgt_epi32(_mm_set1_epi32((int)count), _mm_setr_epi32(0, 1, 2, 3))));
#else
    return _mm_castpd_si128(_mm_load_sd(from));
#endif
}

/* Side by side in one register, +0 where there is none: pieces of rows r, r + PART, r + 2 PART, ... of what is transposed,
 * of which the first lies at `row` and each other `step` further, but the last at `last`, if that isn't NULL. */
SIMD_INLINE vec gather_pieces(const int pieces, const real *row, int64_t step, const real *last, int64_t count)
{
    __m128i piece[4];
    SIMD_UNROLL(4)
    for (int i = 0; i < pieces; i++)
        piece[i] = load_piece(last && i == pieces - 1 ? last : row + i * step, count);
#if SIMD_LEVEL == 2
    __m512i v = _mm512_zextsi128_si512(piece[0]);
    if (pieces > 1)
        v = _mm512_inserti32x4(v, piece[1], 1);
    if (pieces > 2)
        v = _mm512_inserti32x4(v, piece[2], 2);
    if (pieces > 3)
        v = _mm512_inserti32x4(v, piece[3], 3);
    return (vec)v;
#else
    __m256i v = _mm256_zextsi128_si256(piece[0]);
    return (vec)(pieces > 1 ? _mm256_inserti128_si256(v, piece[1], 1) : v);
#endif
}

/* A transpose within the 128-bit lanes. */
SIMD_INLINE void transpose_lanes(vec v[PART])
{
#if VARIANT_BITS == 32
    const vec t0 = SIMD_MM(unpacklo_ps)(v[0], v[1]), t1 = SIMD_MM(unpackhi_ps)(v[0], v[1]);
    const vec t2 = SIMD_MM(unpacklo_ps)(v[2], v[3]), t3 = SIMD_MM(unpackhi_ps)(v[2], v[3]);
    v[0] = SIMD_MM(shuffle_ps)(t0, t2, 0x44);
    v[1] = SIMD_MM(shuffle_ps)(t0, t2, 0xee);
    v[2] = SIMD_MM(shuffle_ps)(t1, t3, 0x44);
    v[3] = SIMD_MM(shuffle_ps)(t1, t3, 0xee);
#else
    const vec t0 = v[0];
    v[0] = SIMD_MM(unpacklo_pd)(t0, v[1]);
    v[1] = SIMD_MM(unpackhi_pd)(t0, v[1]);
#endif
}

/* `count` rows of the panel, up to PART, from those pieces. */
SIMD_INLINE void transpose_pieces(const int pieces, const bool whole, real *to, int64_t stride, const real *const row[PART],
                                  int64_t step, const real *const last[PART], int64_t p, int64_t count, vec_mask mask)
{
    vec v[PART];
    SIMD_UNROLL(4)
    for (int r = 0; r < PART; r++)
        v[r] = gather_pieces(pieces, row[r] + p, step, whole ? NULL : last[r] + p, count);
    transpose_lanes(v);
    SIMD_UNROLL(4)
    for (int i = 0; i < PART; i++)
        if (i < count)
            vec_store(to + (p + i) * stride, whole ? v[i] : vec_keep_mask(v[i], mask));
}

#if SIMD_LEVEL == 2
/* 2 PART rows of a whole panel, with half as many loads: pieces twice as long, of rows r and r + PART in one register,
 * r + 2 PART and r + 3 PART in another. */
SIMD_INLINE void transpose_long_pieces(real *to, int64_t stride, const real *const row[PART], int64_t step, int64_t p)
{
    vec low[PART], high[PART];
    SIMD_UNROLL(4)
    for (int r = 0; r < PART; r++) {
        const real *from = row[r] + p;
        low[r] = (vec)_mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)from)),
                                         _mm256_loadu_si256((const void *)(from + step)), 1);
        high[r] = (vec)_mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)(from + 2 * step))),
                                          _mm256_loadu_si256((const void *)(from + 3 * step)), 1);
    }
    transpose_lanes(low);
    transpose_lanes(high);
    SIMD_UNROLL(4)
    for (int i = 0; i < PART; i++) {
        vec_store(to + (p + i) * stride, (vec)_mm512_shuffle_i32x4((__m512i)low[i], (__m512i)high[i], 0x88));
        vec_store(to + (p + PART + i) * stride, (vec)_mm512_shuffle_i32x4((__m512i)low[i], (__m512i)high[i], 0xdd));
    }
}
#endif

/* VEC_WIDTH columns of a panel, of which `columns` are there, in so many pieces. Not whole: what the last piece lacks is
 * read from the last column and then cleared. */
SIMD_SPECIALIZE void pack_pieces(const int pieces, const bool whole, real *to, int64_t stride, int64_t k, int64_t columns,
                                 const real *from, int64_t ld)
{
    const real *row[PART], *last[PART];
    const vec_mask mask = mask_first(whole ? 0 : columns);
    SIMD_UNROLL(4)
    for (int r = 0; r < PART; r++) {
        const int64_t own = (pieces - 1) * PART + r;
        last[r] = from + (own < columns ? own : columns - 1) * ld;
        row[r] = from + r * ld; /* not read where this is the last piece and not whole */
    }
    int64_t p = 0;
#if SIMD_LEVEL == 2
    for (; whole && p + 2 * PART <= k; p += 2 * PART)
        transpose_long_pieces(to, stride, row, PART * ld, p);
#endif
    for (; p + PART <= k; p += PART)
        transpose_pieces(pieces, whole, to, stride, row, PART * ld, last, p, PART, mask);
    if (p < k)
        transpose_pieces(pieces, whole, to, stride, row, PART * ld, last, p, k - p, mask);
}

static void pack_transposed(real *to, int64_t stride, int64_t k, int64_t columns, const real *from, int64_t ld)
{
    const int64_t pieces = (columns + PART - 1) / PART;
    if (columns >= VEC_WIDTH)
        pack_pieces(VEC_WIDTH / PART, true, to, stride, k, columns, from, ld);
    else if (pieces == 1)
        pack_pieces(1, false, to, stride, k, columns, from, ld);
    else if (pieces == 2)
        pack_pieces(2, false, to, stride, k, columns, from, ld);
#if SIMD_LEVEL == 2
    else if (pieces == 3)
        pack_pieces(3, false, to, stride, k, columns, from, ld);
    else
        pack_pieces(4, false, to, stride, k, columns, from, ld);
#endif
}
#else
static void pack_transposed(real *to, int64_t stride, int64_t k, int64_t columns, const real *from, int64_t ld)
{
    for (int64_t p = 0; p < k; p++)
        for (int64_t j = 0; j < VEC_WIDTH; j++)
            to[p * stride + j] = j < columns ? from[j * ld + p] : 0;
}
#endif

void tile_pack(real *to, int64_t stride, bool transposed, int64_t k, int64_t columns, const real *from, int64_t ld)
{
    for (int64_t j = 0; j < stride; j += VEC_WIDTH) {
        const int64_t here = columns - j;
        if (here <= 0) {
            for (int64_t p = 0; p < k; p++)
                vec_store(to + p * stride + j, vec_set(0));
        } else if (!transposed && here >= VEC_WIDTH) {
            for (int64_t p = 0; p < k; p++)
                vec_store(to + p * stride + j, vec_load(from + p * ld + j));
        } else if (!transposed) {
            const vec_mask mask = mask_first(here);
            for (int64_t p = 0; p < k; p++)
                vec_store(to + p * stride + j, vec_load_mask(from + p * ld + j, mask));
        } else {
            pack_transposed(to + j, stride, k, here, from + j * ld, ld);
        }
    }
}
