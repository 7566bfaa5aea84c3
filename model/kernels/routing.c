/* routing: what a mixture of experts needs beside matrix products.
 *
 * sigmoid   y = 1 / (1 + e^-x);                      dx = dy y (1 - y)
 * softmax   over each row: y = e^(x - max) / sum;    dx = y (dy - sum y dy); sums ascending, one rounded addition each
 * e^x, log  y = e^x; y = log x;   log-sum-exp out[t] = max + log(sum of e^(x - max)), sums ascending, one rounded addition each
 * gather    y[i,:] = x[index[i],:]
 * scatter   y[index[i],:] += w[i] x[i,:] as one fused multiply-add, i ascending; without w: an addition
 * scale     y[i,:] = w[i] x[i,:]
 * dots      out[i] = sum over c of a[i,c] b[i,c], c ascending, each product and each sum rounded
 * An index of -1 is left out: gather gives zeros, scatter passes it over. */
#include "model/kernels/elementary.h"
#include "model/kernels/variant.h"

void FN(sigmoid_forward)(struct tensor y, struct tensor x)
{
    const int64_t n = tensor_count(y);
    const vec one = vec_set(1);
    ASSERT(tensor_count(x) == n);
    for (int64_t i = 0; i < n; i += VEC_WIDTH)
        vec_store_part(reals(y) + i, one / (one + vec_exp(-vec_load_part(reals(x) + i, n - i))), n - i);
}

void FN(sigmoid_backward)(struct tensor dx, struct tensor dy, struct tensor y)
{
    const int64_t n = tensor_count(dx);
    const vec one = vec_set(1);
    ASSERT(tensor_count(dy) == n && tensor_count(y) == n);
    for (int64_t i = 0; i < n; i += VEC_WIDTH) {
        vec s = vec_load_part(reals(y) + i, n - i);
        vec_store_part(reals(dx) + i, vec_load_part(reals(dy) + i, n - i) * (s * (one - s)), n - i);
    }
}

void FN(softmax_forward)(struct tensor y, struct tensor x)
{
    const int64_t rows = row_count(y), columns = row_length(y);
    ASSERT(row_count(x) == rows && row_length(x) == columns);
    for (int64_t t = 0; t < rows; t++) {
        const real *in = reals(x) + t * columns;
        real *out = reals(y) + t * columns, largest = in[0], sum = 0;
        for (int64_t c = 1; c < columns; c++) largest = in[c] > largest ? in[c] : largest;
        for (int64_t c = 0; c < columns; c += VEC_WIDTH)
            vec_store_part(out + c, vec_exp(vec_load_part(in + c, columns - c) - vec_set(largest)), columns - c);
        for (int64_t c = 0; c < columns; c++) sum += out[c];
        for (int64_t c = 0; c < columns; c++) out[c] /= sum;
    }
}

void FN(softmax_backward)(struct tensor dx, struct tensor dy, struct tensor y)
{
    const int64_t rows = row_count(dx), columns = row_length(dx);
    ASSERT(row_count(dy) == rows && row_count(y) == rows);
    for (int64_t t = 0; t < rows; t++) {
        const real *grad = reals(dy) + t * columns, *value = reals(y) + t * columns;
        real *out = reals(dx) + t * columns, sum = 0;
        for (int64_t c = 0; c < columns; c++) sum += value[c] * grad[c];
        for (int64_t c = 0; c < columns; c++) out[c] = value[c] * (grad[c] - sum);
    }
}

void FN(exponential)(struct tensor y, struct tensor x)
{
    const int64_t n = tensor_count(y);
    ASSERT(tensor_count(x) == n);
    for (int64_t i = 0; i < n; i += VEC_WIDTH) vec_store_part(reals(y) + i, vec_exp(vec_load_part(reals(x) + i, n - i)), n - i);
}

void FN(logarithm)(struct tensor y, struct tensor x)
{
    const int64_t n = tensor_count(y);
    ASSERT(tensor_count(x) == n);
    for (int64_t i = 0; i < n; i += VEC_WIDTH) vec_store_part(reals(y) + i, vec_log(vec_load_part(reals(x) + i, n - i)), n - i);
}

void FN(log_sum_exp)(struct tensor out, struct tensor x)
{
    const int64_t rows = row_count(x), columns = row_length(x);
    ASSERT(tensor_count(out) == rows);
    for (int64_t t = 0; t < rows; t++) {
        const real *in = reals(x) + t * columns;
        real largest = in[0], sum = 0, terms[VEC_WIDTH];
        for (int64_t c = 1; c < columns; c++) largest = in[c] > largest ? in[c] : largest;
        for (int64_t c = 0; c < columns; c += VEC_WIDTH) {
            const int64_t left = columns - c < VEC_WIDTH ? columns - c : VEC_WIDTH;
            vec_store_part(terms, vec_exp(vec_load_part(in + c, left) - vec_set(largest)), left);
            for (int64_t i = 0; i < left; i++) sum += terms[i];
        }
        reals(out)[t] = largest + vec_log(vec_set(sum))[0];
    }
}

void FN(gather_rows)(struct tensor y, struct tensor x, const int32_t *index)
{
    const int64_t rows = row_count(y), columns = row_length(y);
    const size_t bytes = (size_t)columns * sizeof(real);
    ASSERT(row_length(x) == columns);
    for (int64_t i = 0; i < rows; i++) {
        ASSERT(index[i] >= -1 && index[i] < row_count(x));
        if (index[i] < 0) memset(reals(y) + i * columns, 0, bytes);
        else memcpy(reals(y) + i * columns, reals(x) + index[i] * columns, bytes);
    }
}

void FN(scatter_add_rows)(struct tensor y, struct tensor x, const int32_t *index, struct tensor w)
{
    const int64_t rows = row_count(x), columns = row_length(x);
    ASSERT(row_length(y) == columns && (!w.data || tensor_count(w) == rows));
    for (int64_t i = 0; i < rows; i++) {
        ASSERT(index[i] >= -1 && index[i] < row_count(y));
        if (index[i] < 0) continue;
        real *to = reals(y) + index[i] * columns;
        const real *from = reals(x) + i * columns;
        const vec weight = vec_set(w.data ? reals(w)[i] : 1);
        for (int64_t c = 0; c < columns; c += VEC_WIDTH) {
            vec sum = vec_fma(weight, vec_load_part(from + c, columns - c), vec_load_part(to + c, columns - c));
            vec_store_part(to + c, sum, columns - c);
        }
    }
}

void FN(scale_rows)(struct tensor y, struct tensor x, struct tensor w)
{
    const int64_t rows = row_count(x), columns = row_length(x);
    ASSERT(row_length(y) == columns && row_count(y) == rows && tensor_count(w) == rows);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t c = 0; c < columns; c += VEC_WIDTH)
            vec_store_part(reals(y) + i * columns + c, vec_set(reals(w)[i]) * vec_load_part(reals(x) + i * columns + c, columns - c), columns - c);
    }
}

void FN(row_dots)(struct tensor out, struct tensor a, struct tensor b)
{
    const int64_t rows = row_count(a), columns = row_length(a);
    ASSERT(row_length(b) == columns && row_count(b) == rows && tensor_count(out) == rows);
    for (int64_t i = 0; i < rows; i++) {
        const real *x = reals(a) + i * columns, *y = reals(b) + i * columns;
        real sum = 0;
        for (int64_t c = 0; c < columns; c++) sum += x[c] * y[c];
        reals(out)[i] = sum;
    }
}
