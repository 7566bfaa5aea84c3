/* gemm: C = (accumulate ? C : 0) + op(A) op(B), row-major, any leading dimension.
 *
 * C[m, n], op(A)[m, k], op(B)[k, n]; lda, ldb, ldc are the distances between stored rows.
 * Per element one fma chain: c = start; for p = 0 .. k-1: c = fma(op(A)(i,p), op(B)(p,j), c), start = C or +0,
 * all in the storage type. So an element depends on its row, its column and k only: not on m, n, the
 * tiling, the packing or the CPU path, and cutting k into two calls, the second accumulating, gives the bits of one.
 *
 * How (after Goto and van de Geijn, Anatomy of High-Performance Matrix Multiplication, 2008): k in blocks, m in
 * blocks of tiles that fit the second cache, n in panels of two vectors that fit the first, all innermost in register
 * tiles (tile.h). Packing makes what a tile reads lie side by side, once a block; it is left out where little is read
 * again:
 *   B  as it lies, where it isn't transposed and few rows of C read a panel; more of them, where its rows lie near
 *      each other, as those that are a multiple of a page apart push each other out of the cache
 *   A  as it lies, where few panels read it, or where all of it is small */
#include "model/kernels/tile.h"

enum {
    K_BLOCK = 256,
    PANEL_BYTES = K_BLOCK * PANEL * sizeof(real),
    TILES_BLOCK = (KERNEL_WORKSPACE_BYTES - PANEL_BYTES) / (K_BLOCK * TILE_STRIDE * sizeof(real)),
    /* where packing begins to pay */
    B_ROWS = 100, B_ROWS_NEAR = 200, NEAR_BYTES = 2048, A_BYTES = 80 * 1024,
};
_Static_assert(TILES_BLOCK >= 4, "a panel of B and some tiles of A fit the workspace");

struct product {
    bool transpose_a, transpose_b;
    int64_t n;
    const real *a, *b;
    real *c;
    int64_t lda, ldb, ldc;
    bool pack_a, pack_b;
};

/* Asks for a share of what the next panel of B is packed from, while this one is multiplied: rows of C [i, i + count)
 * of `rows`. Stored rows of B lie far apart, and no processor guesses the next panel from them. */
static void fetch_panel(const struct product *g, int64_t p, int64_t depth, int64_t j, int64_t i, int64_t count, int64_t rows)
{
    enum { LINE = 64 / sizeof(real) };
    const int64_t columns = g->n - j < PANEL ? g->n - j : PANEL;
    const int64_t lines = g->transpose_b ? columns : depth, width = g->transpose_b ? depth : columns;
    const real *b = g->transpose_b ? g->b + j * g->ldb + p : g->b + p * g->ldb + j;
    for (int64_t line = lines * i / rows; line < lines * (i + count) / rows; line++)
        for (int64_t at = 0; at < width; at += LINE)
            __builtin_prefetch(b + line * g->ldb + at, 0, 2);
}

/* Rows [row, row + rows) of C by `depth` of k from p on, all columns. */
static void block(const struct product *g, int64_t row, int64_t rows, int64_t p, int64_t depth, bool accumulate)
{
    real *panel = kernel_workspace(), *packed = panel + K_BLOCK * PANEL;
    const real *a = g->transpose_a ? g->a + p * g->lda + row : g->a + row * g->lda + p;
    struct strip strip = {.accumulate = accumulate, .k = depth, .ldc = g->ldc};
    if (g->pack_a) {
        real *tile = packed;
        for (int64_t i = 0, count; i < rows; i += count, tile += depth * TILE_STRIDE) {
            count = tile_rows(rows - i, TILE_ROWS_MAX);
            tile_pack(tile, TILE_STRIDE, !g->transpose_a, depth, count, g->transpose_a ? a + i : a + i * g->lda, g->lda);
        }
    }
    for (int64_t j = 0; j < g->n; j += PANEL) {
        strip.columns = g->n - j < PANEL ? g->n - j : PANEL;
        strip.c = g->c + row * g->ldc + j;
        strip.b = g->transpose_b ? g->b + j * g->ldb + p : g->b + p * g->ldb + j;
        strip.ldb = g->ldb;
        if (g->pack_b) {
            const int64_t stride = !g->pack_a && strip.columns <= VEC_WIDTH ? VEC_WIDTH : PANEL;
            tile_pack(panel, stride, g->transpose_b, depth, strip.columns, strip.b, g->ldb);
            strip.b = panel, strip.ldb = stride;
        }
        if (!g->pack_a) {
            strip.rows = rows, strip.a = a, strip.lda = g->lda, strip.a_transposed = g->transpose_a;
            tile_strip(&strip);
            continue;
        }
        strip.a = packed;
        for (int64_t i = 0; i < rows; i += strip.rows) {
            strip.rows = tile_rows(rows - i, TILE_ROWS_MAX);
            for (int64_t next = strip.rows; next < 2 * strip.rows && i + next < rows; next++) {
                __builtin_prefetch(strip.c + next * g->ldc, 1);
                __builtin_prefetch(strip.c + next * g->ldc + VEC_WIDTH, 1);
            }
            if (j + PANEL < g->n)
                fetch_panel(g, p, depth, j + PANEL, i, strip.rows, rows);
            tile_packed(&strip);
            strip.a += depth * TILE_STRIDE;
            strip.c += strip.rows * g->ldc;
        }
    }
}

static __attribute__((noinline)) void blocks(const struct product *g, int64_t m, int64_t k, int64_t rows_max, bool accumulate)
{
    for (int64_t p = 0; p < k; p += K_BLOCK) {
        const int64_t depth = k - p < K_BLOCK ? k - p : K_BLOCK;
        for (int64_t row = 0; row < m; row += rows_max)
            block(g, row, m - row < rows_max ? m - row : rows_max, p, depth, accumulate || p > 0);
    }
}

static __attribute__((noinline)) void clear(int64_t m, int64_t n, real *c, int64_t ldc)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            c[i * ldc + j] = 0;
}

void FN(gemm)(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda,
              const void *b, int64_t ldb, bool accumulate, void *c, int64_t ldc)
{
    ASSERT(m >= 0 && n >= 0 && k >= 0);
    if (k == 0 && !accumulate)
        clear(m, n, c, ldc);
    if (m == 0 || n == 0)
        return;
    /* A product that is one tile goes the shortest way. */
    if (m <= (n > VEC_WIDTH ? TILE_ROWS_MAX : TILE_ROWS_NARROW) && n <= PANEL && k <= K_BLOCK) {
        struct strip strip = {.a_transposed = transpose_a, .accumulate = accumulate, .rows = m, .columns = n, .k = k,
                              .a = a, .lda = lda, .b = b, .ldb = ldb, .c = c, .ldc = ldc};
        if (transpose_b) {
            real *panel = kernel_workspace();
            strip.b = panel, strip.ldb = n <= VEC_WIDTH ? VEC_WIDTH : PANEL;
            tile_pack(panel, strip.ldb, true, k, n, b, ldb);
        }
        tile_strip(&strip);
        return;
    }
    const int64_t depth_max = k < K_BLOCK ? k : K_BLOCK;
    const bool pack_a = n > 2 * PANEL && m * depth_max * (int64_t)sizeof(real) > A_BYTES;
    const int64_t b_rows = ldb * (int64_t)sizeof(real) <= NEAR_BYTES ? B_ROWS_NEAR : B_ROWS;
    const struct product g = {.transpose_a = transpose_a, .transpose_b = transpose_b, .n = n, .a = a, .b = b, .c = c,
                              .lda = lda, .ldb = ldb, .ldc = ldc, .pack_a = pack_a,
                              .pack_b = pack_a || transpose_b || m > b_rows};
    const int64_t count = pack_a ? (m + TILES_BLOCK * TILE_ROWS_MAX - 1) / (TILES_BLOCK * TILE_ROWS_MAX) : 1;
    blocks(&g, m, k, (m + count - 1) / count, accumulate);
}
