/* linear: a matrix and an optional bias, as torch.nn.Linear stores them.
 *
 *   forward          y[T,out]   = x[T,in] W[out,in]^T + b[out]     k = in ascending, then the bias
 *   backward input   dx[T,in]   = dy[T,out] W[out,in]              k = out ascending
 *   backward weight  dW[out,in] += dy[T,out]^T x[T,in]             k = T ascending
 *                    db[out]    += sum_t dy[t,out]                 t ascending
 *
 * Where a sum accumulates, its chain starts from what is there. So a batch that is cut into
 * micro-batches gives the same bits as the whole batch, and cutting `out` gives the same bits in y.
 *
 * Narrow formats: operands hold values of the compute format already and add up in the storage; y and dx are
 * rounded once, as a matrix unit with a wide accumulator does. Eight bits: x and W by rows, dy by rows and W by
 * columns are scaled, so that a token's result does not depend on the tokens beside it; dW takes the unrounded
 * operands. */
#include "model/layers/linear.h"

#include "model/precision.h"
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

/* The operand as an eight-bit matrix unit reads it; as it is where the compute format is wider. */
static struct tensor operand(const struct layer_context *context, struct tensor x, bool by_column)
{
    if (!format_is_fp8(context->precision->compute)) return x;
    struct tensor rounded = tensor_2d(arena_alloc(context->scratch, (size_t)tensor_bytes(x)), x.storage, x.shape[0], x.shape[1]);
    matrix_round_scaled(rounded, x, context->precision->compute, by_column);
    return rounded;
}

void linear_forward(const struct layer_context *context, enum format result, struct tensor y, struct tensor x,
                    struct tensor weight, struct tensor bias)
{
    const struct ops *ops = context->ops;
    linear_check(ops, x, y, weight);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor a = operand(context, x, false), b = operand(context, weight, false);
    ops->gemm(false, true, x.shape[0], weight.shape[0], weight.shape[1], a.data, a.stride[0], b.data, b.stride[0], false,
              y.data, y.stride[0]);
    arena_release(context->scratch, mark);
    if (bias.data != NULL) {
        linear_check_bias(ops, bias, weight);
        ops->bias_forward(y, bias);
    }
    tensor_round(y, result);
}

void linear_backward_input(const struct layer_context *context, enum format result, struct tensor dx, struct tensor dy,
                           struct tensor weight, bool accumulate)
{
    const struct ops *ops = context->ops;
    linear_check(ops, dx, dy, weight);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor a = operand(context, dy, false), b = operand(context, weight, true);
    ops->gemm(false, false, dy.shape[0], weight.shape[1], weight.shape[0], a.data, a.stride[0], b.data, b.stride[0],
              accumulate, dx.data, dx.stride[0]);
    arena_release(context->scratch, mark);
    tensor_round(dx, result);
}

void linear_backward_weight(const struct layer_context *context, struct tensor dweight, struct tensor dbias,
                            struct tensor dy, struct tensor x)
{
    const struct ops *ops = context->ops;
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
