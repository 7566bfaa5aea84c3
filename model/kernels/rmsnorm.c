/* rmsnorm: root mean square layer normalization (Zhang & Sennrich 2019).
 *
 * x, y, dx, dy [T, C], w, dw [C], rstd [T]; everything in the storage type.
 * forward          rstd = 1 / sqrt(sum_c x^2 / C + eps);  y = (x rstd) w
 * backward_input   s = sum_c (dy w) x;  dx = (dy w - x (rstd^2 s / C)) rstd, the difference fused
 * backward_weight  dw[c] = fma(dy[t,c], x[t,c] rstd[t], dw[c]), t ascending from what dw holds
 * The sums over c: 16 lanes (column c in lane c mod 16, a fused chain, c ascending), then lanes_sum's tree. */
#include "model/kernels/variant.h"

void FN(rmsnorm_forward)(struct tensor y, struct tensor rstd, struct tensor x, struct tensor w, double eps)
{
    const int64_t rows = row_count(x), columns = row_length(x);
    real *out = reals(y), *scales = reals(rstd);
    const real *in = reals(x), *weight = reals(w);
    ASSERT(tensor_count(y) == rows * columns && tensor_count(rstd) == rows && tensor_count(w) == columns);
    for (int64_t t = 0; t < rows; t++, in += columns, out += columns) {
        vec squares[LANE_VECS] = {{0}};
        for (int64_t c = 0; c < columns; c += LANES)
            for (int l = 0; l < LANE_VECS; l++) {
                int64_t at = c + l * VEC_WIDTH;
                vec v = vec_load_part(in + at, columns - at);
                squares[l] = vec_fma(v, v, squares[l]);
            }
        vec mean = vec_set(lanes_sum(squares) / (real)columns + (real)eps);
        vec scale = vec_set(1) / vec_sqrt(mean);
        scales[t] = scale[0];
        for (int64_t c = 0; c < columns; c += VEC_WIDTH)
            vec_store_part(out + c, vec_load_part(in + c, columns - c) * scale * vec_load_part(weight + c, columns - c),
                           columns - c);
    }
}

void FN(rmsnorm_backward_input)(struct tensor dx, struct tensor dy, struct tensor x, struct tensor w,
                                struct tensor rstd)
{
    const int64_t rows = row_count(x), columns = row_length(x);
    real *out = reals(dx);
    const real *grad = reals(dy), *in = reals(x), *weight = reals(w), *scales = reals(rstd);
    ASSERT(tensor_count(dx) == rows * columns && tensor_count(dy) == rows * columns);
    ASSERT(tensor_count(rstd) == rows && tensor_count(w) == columns);
    for (int64_t t = 0; t < rows; t++, in += columns, grad += columns, out += columns) {
        vec sums[LANE_VECS] = {{0}};
        for (int64_t c = 0; c < columns; c += LANES)
            for (int l = 0; l < LANE_VECS; l++) {
                int64_t at = c + l * VEC_WIDTH;
                vec weighted = vec_load_part(grad + at, columns - at) * vec_load_part(weight + at, columns - at);
                sums[l] = vec_fma(weighted, vec_load_part(in + at, columns - at), sums[l]);
            }
        vec scale = vec_set(scales[t]);
        vec factor = scale * scale * vec_set(lanes_sum(sums) / (real)columns);
        for (int64_t c = 0; c < columns; c += VEC_WIDTH) {
            vec weighted = vec_load_part(grad + c, columns - c) * vec_load_part(weight + c, columns - c);
            vec inner = vec_fma(-vec_load_part(in + c, columns - c), factor, weighted);
            vec_store_part(out + c, inner * scale, columns - c);
        }
    }
}

void FN(rmsnorm_backward_weight)(struct tensor dw, struct tensor dy, struct tensor x, struct tensor rstd)
{
    const int64_t rows = row_count(x), columns = row_length(x);
    real *sums = reals(dw);
    const real *grad = reals(dy), *in = reals(x), *scales = reals(rstd);
    ASSERT(tensor_count(dy) == rows * columns && tensor_count(rstd) == rows && tensor_count(dw) == columns);
    for (int64_t t = 0; t < rows; t++, in += columns, grad += columns) {
        vec scale = vec_set(scales[t]);
        for (int64_t c = 0; c < columns; c += VEC_WIDTH) {
            vec normed = vec_load_part(in + c, columns - c) * scale;
            vec sum = vec_fma(vec_load_part(grad + c, columns - c), normed, vec_load_part(sums + c, columns - c));
            vec_store_part(sums + c, sum, columns - c);
        }
    }
}
