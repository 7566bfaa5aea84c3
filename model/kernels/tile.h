/* tile: the register-tiled product that gemm and attention share, and the packing of B into panels.
 *
 * A strip is C[rows, columns] (+)= A[rows, k] B[k, columns] with columns <= PANEL, the width of two vectors. It is
 * done in tiles of up to TILE_ROWS rows whose sums stay in registers. Per element one fma chain, k ascending,
 * starting from C (accumulate) or from +0: how rows and columns are cut has no influence on bits, and
 * cutting k into calls gives what one call gives. */
#ifndef MODEL_KERNELS_TILE_H
#define MODEL_KERNELS_TILE_H

#include "model/kernels/variant.h"

enum {
    PANEL = 2 * VEC_WIDTH,
    TILE_ROWS = SIMD_LEVEL == 2 ? 12 : SIMD_LEVEL == 1 ? 6 : 4,
};

/* A: element (i, p) at a[i * lda + p], or a[p * lda + i] if transposed. B: row p of PANEL readable numbers at
 * b + p * ldb (only the first whole vector is read if columns <= VEC_WIDTH).
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

/* panel[p * PANEL + j] = op(B)(p, j) for p < k and j < columns, +0 for columns <= j < PANEL.
 * op(B)(p, j) is b[p * ldb + j], or b[j * ldb + p] if transposed. */
void tile_pack(real *panel, bool b_transposed, int64_t k, int64_t columns, const real *b, int64_t ldb);

#endif
