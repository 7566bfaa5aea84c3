/* tile: the register-tiled product that gemm and attention share, and the packing of B into panels.
 *
 * A strip is C[rows, columns] (+)= A[rows, k] B[k, columns] with columns <= PANEL, the width of two vectors. It is
 * done in tiles of up to TILE_ROWS_MAX rows whose sums stay in registers. Per element one fma chain, k ascending,
 * starting from C (accumulate) or from +0: how rows and columns are cut has no influence on bits, and
 * cutting k into calls gives what one call gives. */
#ifndef MODEL_KERNELS_TILE_H
#define MODEL_KERNELS_TILE_H

#include "model/kernels/variant.h"

enum {
    PANEL = 2 * VEC_WIDTH,
    TILE_ROWS_MAX = SIMD_LEVEL == 2 ? 14 : SIMD_LEVEL == 1 ? 6 : 4,
    TILE_ROWS_NARROW = SIMD_LEVEL == 2 ? 16 : SIMD_LEVEL == 1 ? 8 : 4, /* of one vector */
    TILE_STRIDE = (TILE_ROWS_MAX + VEC_WIDTH - 1) / VEC_WIDTH * VEC_WIDTH, /* of a packed tile of A */
    TILE_ROWS = SIMD_LEVEL == 2 ? 12 : SIMD_LEVEL == 1 ? 6 : 4, /* ranged */
};

/* The height of the next tile where so many rows are left: as few tiles as it takes, of nearly equal height, as a tile
 * of a row or two waits for its own sums. */
SIMD_INLINE int64_t tile_rows(int64_t left, int64_t most)
{
    if (left <= most || left >= 8 * most)
        return left <= most ? left : most;
    const uint32_t tiles = ((uint32_t)left + (uint32_t)most - 1) / (uint32_t)most;
    return ((uint32_t)left + tiles - 1) / tiles;
}

/* A: element (i, p) at a[i * lda + p], or a[p * lda + i] if transposed. B: row p at b + p * ldb; not ranged, no
 * more than its columns are read; ranged, whole vectors.
 * Ranged (first is not NULL): row i takes part for first[i] <= p < last[i] only, within 0 .. k; the other p do not
 * touch its sums. offset is subtracted from first and last before use. */
struct strip {
    bool a_transposed, accumulate;
    int64_t rows, columns, k;
    const real *a;
    int64_t lda;
    const real *b;
    int64_t ldb;
    real *c;
    int64_t ldc;
    const int32_t *first, *last;
    int64_t offset;
};

#define tile_strip FN(tile_strip)
#define tile_pack FN(tile_pack)
void tile_strip(const struct strip *strip);
/* One tile, up to TILE_ROWS_MAX rows: A packed, (i, p) at a[p * TILE_STRIDE + i], and B in a packed panel. */
#define tile_packed FN(tile_packed)
void tile_packed(const struct strip *strip);

/* to[p * stride + j] = x(p, j) for p < k and j < columns, +0 for columns <= j < stride, which is a multiple of
 * VEC_WIDTH. x(p, j) is from[p * ld + j], or from[j * ld + p] if transposed. */
void tile_pack(real *to, int64_t stride, bool transposed, int64_t k, int64_t columns, const real *from, int64_t ld);

#endif
