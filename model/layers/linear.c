/* linear: a matrix and an optional bias, as torch.nn.Linear stores them.
 *
 *   forward          y[T,out]   = x[T,in] W[out,in]^T + b[out]     k = in ascending, then the bias
 *   backward input   dx[T,in]   = dy[T,out] W[out,in]              k = out ascending
 *   backward weight  dW[out,in] += dy[T,out]^T x[T,in]             k = T ascending
 *                    db[out]    += sum_t dy[t,out]                 t ascending
 *
 * Where a sum accumulates, its chain starts from what is there. So a batch that is cut into
 * micro-batches gives the same bits as the whole batch, and cutting `out` gives the same bits in y. */
#include "model/layers/linear.h"

#include "sim/assertion.h"

/* What all three need: x [T,in], y [T,out], W [out,in], rows contiguous, one storage. */
static void linear_check(const struct ops *ops, struct tensor x, struct tensor y, struct tensor weight)
{
    ASSERT(x.dims == 2 && y.dims == 2 && weight.dims == 2);
    ASSERT(x.shape[0] == y.shape[0] && x.shape[1] == weight.shape[1] && y.shape[1] == weight.shape[0]);
    ASSERT(x.stride[1] == 1 && y.stride[1] == 1 && weight.stride[1] == 1);
    ASSERT(x.storage == ops->storage && y.storage == ops->storage && weight.storage == ops->storage);
}

static void linear_check_bias(const struct ops *ops, struct tensor bias, struct tensor weight)
{
    ASSERT(bias.dims == 1 && bias.shape[0] == weight.shape[0] && bias.storage == ops->storage);
}

void linear_forward(const struct ops *ops, struct tensor y, struct tensor x, struct tensor weight, struct tensor bias)
{
    linear_check(ops, x, y, weight);
    ops->gemm(false, true, x.shape[0], weight.shape[0], weight.shape[1], x.data, x.stride[0], weight.data,
              weight.stride[0], false, y.data, y.stride[0]);
    if (bias.data != NULL) {
        linear_check_bias(ops, bias, weight);
        ops->bias_forward(y, bias);
    }
}

void linear_backward_input(const struct ops *ops, struct tensor dx, struct tensor dy, struct tensor weight,
                           bool accumulate)
{
    linear_check(ops, dx, dy, weight);
    ops->gemm(false, false, dy.shape[0], weight.shape[1], weight.shape[0], dy.data, dy.stride[0], weight.data,
              weight.stride[0], accumulate, dx.data, dx.stride[0]);
}

void linear_backward_weight(const struct ops *ops, struct tensor dweight, struct tensor dbias, struct tensor dy,
                            struct tensor x)
{
    linear_check(ops, x, dy, dweight);
    ops->gemm(true, false, dweight.shape[0], dweight.shape[1], dy.shape[0], dy.data, dy.stride[0], x.data,
              x.stride[0], true, dweight.data, dweight.stride[0]);
    if (dbias.data != NULL) {
        linear_check_bias(ops, dbias, dweight);
        ops->bias_backward(dbias, dy);
    }
}

/* One multiply and one add for each element of W and each row; the bias is not counted. */
double linear_forward_flops(int64_t rows, int64_t in, int64_t out)
{
    return 2.0 * (double)rows * (double)in * (double)out;
}
