/* embedding: a row of w per token.
 *
 * w [V, C], tokens [T], y and dy [T, C].
 * forward   y[t,:] = w[tokens[t],:]
 * backward  dw[tokens[t],:] += dy[t,:], t ascending: one rounded addition a token, in the storage type. */
#include "model/kernels/variant.h"

void FN(embedding_forward)(struct tensor y, const int32_t *tokens, struct tensor w)
{
    const int64_t rows = row_count(y), columns = row_length(y);
    real *out = reals(y);
    const real *table = reals(w);
    ASSERT(row_length(w) == columns);
    for (int64_t t = 0; t < rows; t++) {
        ASSERT(tokens[t] >= 0 && tokens[t] < w.shape[0]);
        memcpy(out + t * columns, table + tokens[t] * columns, (size_t)columns * sizeof(real));
    }
}

void FN(embedding_backward)(struct tensor dw, const int32_t *tokens, struct tensor dy)
{
    const int64_t rows = row_count(dy), columns = row_length(dy);
    real *table = reals(dw);
    const real *in = reals(dy);
    ASSERT(row_length(dw) == columns);
    for (int64_t t = 0; t < rows; t++) {
        ASSERT(tokens[t] >= 0 && tokens[t] < dw.shape[0]);
        real *row = table + tokens[t] * columns;
        for (int64_t c = 0; c < columns; c += VEC_WIDTH) {
            vec sum = vec_load_part(row + c, columns - c) + vec_load_part(in + t * columns + c, columns - c);
            vec_store_part(row + c, sum, columns - c);
        }
    }
}
