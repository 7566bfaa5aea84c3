/* bias: one number a column.
 *
 * y, dy [T, C], b, db [C].
 * forward   y[t,c] += b[c]
 * backward  db[c] += dy[t,c], t ascending from what db holds, in the storage type. */
#include "model/kernels/variant.h"

void FN(bias_forward)(struct tensor y, struct tensor b)
{
    const int64_t rows = row_count(y), columns = row_length(y);
    real *out = reals(y);
    const real *bias = reals(b);
    ASSERT(tensor_count(b) == columns);
    for (int64_t t = 0; t < rows; t++, out += columns)
        for (int64_t c = 0; c < columns; c += VEC_WIDTH)
            vec_store_part(out + c, vec_load_part(out + c, columns - c) + vec_load_part(bias + c, columns - c),
                           columns - c);
}

void FN(bias_backward)(struct tensor db, struct tensor dy)
{
    const int64_t rows = row_count(dy), columns = row_length(dy);
    real *sums = reals(db);
    const real *in = reals(dy);
    ASSERT(tensor_count(db) == columns);
    for (int64_t t = 0; t < rows; t++, in += columns)
        for (int64_t c = 0; c < columns; c += VEC_WIDTH)
            vec_store_part(sums + c, vec_load_part(sums + c, columns - c) + vec_load_part(in + c, columns - c),
                           columns - c);
}
