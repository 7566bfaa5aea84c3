/* embedding: a row of W a token.
 *
 *   forward    y[t] = W[token t]           backward   dW[token t] += dy[t], t ascending          W [V,C]; y, dy [T,C]
 *
 * Tensor parallelism splits W by the vocabulary: a rank gives zeros for tokens whose rows are elsewhere, and y is the sum
 * over tp; each adds the gradients of its own rows alone (Megatron-LM's vocabulary-parallel embedding). With sequence parallelism
 * y and dy are slices: the sum is scattered, dy gathered. */
#include "model/layers/layers.h"
#include "model/layers/sequence_parallel.h"
#include "model/layers/tensor_parallel.h"
#include "model/precision.h"

/* Tokens as rows of this rank's part; -1: elsewhere. */
static const int32_t *own_rows(const struct layer_context *context, const int32_t *tokens, int64_t rows)
{
    int64_t count = layer_rows(context), first = rows * context->tp->group->me;
    int32_t *own = arena_alloc(context->scratch, (size_t)count * sizeof *own);
    int64_t begin = layer_choice(context, &site_tp_vocab_range, 0, true) ? first : first + 1; /* a range that begins one late */
    for (int64_t t = 0; t < count; t++) own[t] = tokens[t] >= begin && tokens[t] < first + rows ? (int32_t)(tokens[t] - first) : -1;
    return own;
}

void embedding_forward(const struct layer_context *whole_context, struct tensor y, const int32_t *tokens, struct tensor weight)
{
    const struct layer_context own = layer_part_context(whole_context, TENSOR_VOCABULARY), *context = &own;
    struct arena_mark mark = arena_mark(context->scratch);
    if (context->tp) {
        struct tensor part = context->sequence_split ? layer_matrix_alloc(context, y.shape[1], context->scratch) : y;
        context->ops->gather_rows(part, weight, own_rows(context, tokens, weight.shape[0]));
        if (context->sequence_split) sequence_reduce_scatter(context, &site_tp_embedding_reduce, y, part, context->precision->residual);
        else tensor_parallel_sum(context, &site_tp_embedding_reduce, y, context->precision->residual);
    } else {
        context->ops->embedding_forward(y, tokens, weight);
    }
    if (context->sequence_split && !layer_choice(context, &site_sp_slice_end, 0, true)) sequence_drop_last(context, y);
    tensor_round(y, context->precision->residual);
    arena_release(context->scratch, mark);
}

void embedding_backward(const struct layer_context *whole_context, struct tensor dweight, const int32_t *tokens, struct tensor dy)
{
    const struct layer_context own = layer_part_context(whole_context, TENSOR_VOCABULARY), *context = &own;
    struct arena_mark mark = arena_mark(context->scratch);
    dy = sequence_gather(context, &site_sp_output_grad_gather, dy, context->precision->residual, context->scratch);
    if (context->sequence_split && !layer_choice(context, &site_sp_slice_end, 0, true)) sequence_drop_last(context, dy); /* gathered: ours */
    if (context->tp) context->ops->scatter_add_rows(dweight, dy, own_rows(context, tokens, dweight.shape[0]), (struct tensor){.data = NULL});
    else context->ops->embedding_backward(dweight, tokens, dy);
    arena_release(context->scratch, mark);
}
