/* gemm: C = (accumulate ? C : 0) + op(A) op(B), row-major, any leading dimension.
 *
 * C[m, n], op(A)[m, k], op(B)[k, n]; lda, ldb, ldc are the distances between stored rows.
 * Per element one fma chain: c = start; for p = 0 .. k-1: c = fma(op(A)(i,p), op(B)(p,j), c), start = C or +0,
 * all in the storage type. So an element depends on its row, its column and k only: not on m, n, the
 * tiling or the CPU path, and cutting k into two calls, the second accumulating, gives the bits of one.
 *
 * How: k in blocks that fit the workspace, n in panels of two vectors that are packed (and so transposed
 * where needed), m in register tiles (tile.h) that read A where it lies. A transposed A is read across its
 * rows, as the tile wants it: numbers of neighbouring rows i lie side by side. */
#include "model/kernels/tile.h"

enum { K_BLOCK = 256 };
_Static_assert(K_BLOCK * PANEL * sizeof(real) <= KERNEL_WORKSPACE_BYTES, "a panel of B fits the workspace");

void FN(gemm)(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const void *a_data, int64_t lda,
              const void *b_data, int64_t ldb, bool accumulate, void *c_data, int64_t ldc)
{
    const real *a = a_data, *b = b_data;
    real *c = c_data, *panel = kernel_workspace();
    ASSERT(m >= 0 && n >= 0 && k >= 0);
    if (k == 0 && !accumulate)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < n; j++)
                c[i * ldc + j] = 0;
    if (m == 0 || n == 0)
        return;
    for (int64_t p = 0; p < k; p += K_BLOCK) {
        int64_t depth = k - p < K_BLOCK ? k - p : K_BLOCK;
        for (int64_t j = 0; j < n; j += PANEL) {
            int64_t columns = n - j < PANEL ? n - j : PANEL;
            tile_pack(panel, transpose_b, depth, columns, transpose_b ? b + j * ldb + p : b + p * ldb + j, ldb);
            tile_strip(&(struct strip){
                .a_transposed = transpose_a, .accumulate = accumulate || p > 0,
                .rows = m, .columns = columns, .k = depth,
                .a = transpose_a ? a + p * lda : a + p, .lda = lda,
                .b = panel, .ldb = PANEL, .c = c + j, .ldc = ldc});
        }
    }
}
