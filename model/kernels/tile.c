/* tile: see tile.h. */
#include "model/kernels/tile.h"

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
SIMD_SPECIALIZE void tile(const int rows, const int vecs, const bool a_transposed, const bool ranged,
                          const struct strip *strip, int64_t row)
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
    if (!ranged) {
        tile_depth(rows, vecs, a_transposed, false, sums, strip, row, 0, k);
    } else {
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
    }
    SIMD_UNROLL(12)
    for (int i = 0; i < rows; i++)
        SIMD_UNROLL(2)
        for (int v = 0; v < vecs; v++)
            if (v + 1 < vecs)
                vec_store(c + i * ldc, sums[i][v]);
            else
                vec_store_part(c + i * ldc + v * VEC_WIDTH, sums[i][v], last);
}

/* A tile's shape as a function: rows, vectors, layout of A, ranged or not. */
#define TILE_FUNCTION(rows, vecs, layout, range) \
    static void tile_##rows##_##vecs##_##layout##_##range(const struct strip *strip, int64_t row) \
    { \
        tile(rows, vecs, layout, range, strip, row); \
    }
#define TILE(rows) \
    TILE_FUNCTION(rows, 1, 0, 0) TILE_FUNCTION(rows, 2, 0, 0) \
    TILE_FUNCTION(rows, 1, 1, 0) TILE_FUNCTION(rows, 2, 1, 0) \
    TILE_FUNCTION(rows, 1, 0, 1) TILE_FUNCTION(rows, 2, 0, 1) \
    TILE_FUNCTION(rows, 1, 1, 1) TILE_FUNCTION(rows, 2, 1, 1)
#define TILE_LINE(rows) \
    {rows, {{{tile_##rows##_1_0_0, tile_##rows##_1_0_1}, {tile_##rows##_1_1_0, tile_##rows##_1_1_1}}, \
            {{tile_##rows##_2_0_0, tile_##rows##_2_0_1}, {tile_##rows##_2_1_0, tile_##rows##_2_1_1}}}},

#if SIMD_LEVEL == 2
#define TILES(X) X(12) X(8) X(4) X(2) X(1)
#elif SIMD_LEVEL == 1
#define TILES(X) X(6) X(4) X(2) X(1)
#else
#define TILES(X) X(4) X(2) X(1)
#endif
TILES(TILE)

static const struct {
    int rows;
    void (*run[2][2][2])(const struct strip *, int64_t row); /* [two vectors][A transposed][ranged] */
} tiles[] = {TILES(TILE_LINE)};

void tile_strip(const struct strip *strip)
{
    int64_t row = 0;
    for (int t = 0; row < strip->rows; t++) {
        void (*run)(const struct strip *, int64_t) =
            tiles[t].run[strip->columns > VEC_WIDTH][strip->a_transposed][strip->first != NULL];
        for (; row + tiles[t].rows <= strip->rows; row += tiles[t].rows)
            run(strip, row);
    }
}

/* Transpose PART rows of B of VEC_WIDTH x PART numbers at once: 128-bit pieces of rows j, j + PART, ... side by side
 * in one register, then a transpose within the 128-bit lanes. */
#if SIMD_LEVEL == 2
SIMD_INLINE vec gather_pieces(const real *b, int64_t ldb)
{
    const int part = 16 / sizeof(real);
    const int64_t step = part * ldb;
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const void *)b));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(b + step)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const void *)(b + 2 * step)), 2);
    return (vec)_mm512_inserti32x4(v, _mm_loadu_si128((const void *)(b + 3 * step)), 3);
}
#elif SIMD_LEVEL == 1
SIMD_INLINE vec gather_pieces(const real *b, int64_t ldb)
{
    const int part = 16 / sizeof(real);
    __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const void *)b));
    return (vec)_mm256_inserti128_si256(v, _mm_loadu_si128((const void *)(b + part * ldb)), 1);
}
#endif

/* VEC_WIDTH columns of a panel from as many rows of B; returns how many of k it did (whole pieces). */
static int64_t pack_transposed(real *panel, int64_t k, const real *b, int64_t ldb)
{
    int64_t p = 0;
#if SIMD_LEVEL > 0 && VARIANT_BITS == 32
    for (; p + 4 <= k; p += 4) {
        vec r0 = gather_pieces(b + p, ldb), r1 = gather_pieces(b + ldb + p, ldb);
        vec r2 = gather_pieces(b + 2 * ldb + p, ldb), r3 = gather_pieces(b + 3 * ldb + p, ldb);
        vec t0 = SIMD_MM(unpacklo_ps)(r0, r1), t1 = SIMD_MM(unpackhi_ps)(r0, r1);
        vec t2 = SIMD_MM(unpacklo_ps)(r2, r3), t3 = SIMD_MM(unpackhi_ps)(r2, r3);
        vec_store(panel + p * PANEL, SIMD_MM(shuffle_ps)(t0, t2, 0x44));
        vec_store(panel + (p + 1) * PANEL, SIMD_MM(shuffle_ps)(t0, t2, 0xee));
        vec_store(panel + (p + 2) * PANEL, SIMD_MM(shuffle_ps)(t1, t3, 0x44));
        vec_store(panel + (p + 3) * PANEL, SIMD_MM(shuffle_ps)(t1, t3, 0xee));
    }
#elif SIMD_LEVEL > 0
    for (; p + 2 <= k; p += 2) {
        vec r0 = gather_pieces(b + p, ldb), r1 = gather_pieces(b + ldb + p, ldb);
        vec_store(panel + p * PANEL, SIMD_MM(unpacklo_pd)(r0, r1));
        vec_store(panel + (p + 1) * PANEL, SIMD_MM(unpackhi_pd)(r0, r1));
    }
#else
    (void)panel, (void)k, (void)b, (void)ldb;
#endif
    return p;
}

void tile_pack(real *panel, bool b_transposed, int64_t k, int64_t columns, const real *b, int64_t ldb)
{
    for (int v = 0; v < 2; v++, panel += VEC_WIDTH, columns -= VEC_WIDTH) {
        if (!b_transposed) {
            for (int64_t p = 0; p < k; p++)
                vec_store(panel + p * PANEL, vec_load_part(columns > 0 ? b + p * ldb + v * VEC_WIDTH : b, columns));
            continue;
        }
        const real *rows = b + v * VEC_WIDTH * ldb;
        int64_t p = columns >= VEC_WIDTH ? pack_transposed(panel, k, rows, ldb) : 0;
        for (; p < k; p++)
            for (int64_t j = 0; j < VEC_WIDTH; j++)
                panel[p * PANEL + j] = j < columns ? rows[j * ldb + p] : 0;
    }
}
