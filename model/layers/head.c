/* head: from the last layer's output to one loss a token.
 *
 *   n = rmsnorm(x)   z = n W^T   loss[t] = logsumexp(z[t,:]) - z[t, target]       n [T,C], z [T,V]
 *
 * Backward, with the cotangent w[t] of each loss:
 *   dz[t,:] = w[t] (softmax(z[t,:]) - onehot(target))   dn = dz W   dx = rmsnorm'(dn)
 *   dW += dz^T n   dw_norm += rmsnorm'(dn, x)
 *
 * Tensor parallelism splits W by rows, that is, by the vocabulary (Megatron-LM's vocabulary-parallel cross-entropy): each
 * rank's lse of its part, then over tp the largest, the sum of e^(lse - largest) and the target's logit, which one rank
 * has; dn is a sum over tp.
 *
 * With sequence parallelism x, n and dx are slices: n is gathered before W, and every rank has the losses of all tokens.
 *
 * The logits are by far the largest tensor here: they are kept once, and dz takes their place. So
 * head_backward_input runs at most once after each forward. Or they are made in chunks, a part of one sequence after the
 * other (train.sequence_chunks): then one chunk is all that is ever there, and each is made again for dx and once more for dW.
 * A row's logits depend on its own row alone and dW's chain goes on over the rows in their order, so the bits are the same.
 * Limit: with tensor parallelism the logits are made at once. */
#include "model/layers/layers.h"
#include "model/layers/linear.h"
#include "model/layers/sequence_parallel.h"
#include "model/layers/tensor_parallel.h"
#include "model/precision.h"

#include <string.h>

#include "sim/assertion.h"

struct head_saved {
    struct tensor x, rstd, normed;
    struct tensor logits, lse;      /* dz is in `logits` from backward_input on */
    struct tensor dnormed;          /* without data before backward_input */
    int64_t chunk;                  /* rows of `logits`: all, or those of a chunk */
    enum format format;             /* of the logits */
    struct tensor output, weight;   /* chunks: what dz is made from once more, from backward_input on */
    const int32_t *targets;         /* within this rank's part of the vocabulary; -2: in another */
};

static const struct tensor no_bias = { .data = NULL };

enum { TARGET_ELSEWHERE = -2 };

/* Targets as rows of this rank's part of W. */
static const int32_t *own_targets(const struct layer_context *context, const int32_t *targets, int64_t vocab, struct arena *arena)
{
    if (!context->tp) return targets;
    int64_t rows = layer_rows(context), first = vocab * context->tp->group->me;
    int32_t *own = arena_alloc(arena, (size_t)rows * sizeof *own);
    for (int64_t t = 0; t < rows; t++) {
        int64_t at = targets[t] - first;
        own[t] = targets[t] < 0 ? targets[t] : at >= 0 && at < vocab ? (int32_t)at : TARGET_ELSEWHERE;
    }
    return own;
}

/* From each part's lse to the whole one, and the losses. */
static void merge_parts(const struct layer_context *context, struct head_saved *saved, struct tensor token_loss, const int32_t *targets)
{
    int64_t rows = layer_rows(context);
    enum format storage = context->ops->storage;
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor largest = layer_vector_alloc(context, rows, context->scratch), sums = layer_vector_alloc(context, 2 * rows, context->scratch);
    struct tensor sum = tensor_1d(sums.data, storage, rows);
    memcpy(largest.data, saved->lse.data, (size_t)tensor_bytes(largest));
    struct comm how = {.site = &site_tp_loss_max, .where = context->where};
    struct buffer buffer = {largest.data, (size_t)rows, storage, storage, NULL};
    all_reduce(context->tp->communicator, context->tp->group, &how, buffer, REDUCE_MAX);
    context->ops->cross_entropy_part(sum, saved->lse, largest);
    for (int64_t t = 0; t < rows; t++) {
        bool own = saved->targets[t] >= 0;
        double logit = own ? format_get(saved->logits.data, (size_t)(t * saved->logits.shape[1] + saved->targets[t]), storage) : 0;
        format_set(sums.data, (size_t)(rows + t), storage, logit);
    }
    tensor_parallel_sum(context, &site_tp_loss_reduce, sums, storage);
    context->ops->cross_entropy_whole(saved->lse, largest, sum);
    for (int64_t t = 0; t < rows; t++) {
        double loss = format_get(saved->lse.data, (size_t)t, storage) - format_get(sums.data, (size_t)(rows + t), storage);
        format_set(token_loss.data, (size_t)t, storage, targets[t] < 0 ? 0 : loss);
    }
    arena_release(context->scratch, mark);
}

static struct tensor some_rows(struct tensor t, int64_t first, int64_t count)
{
    t.data = (char *)t.data + (size_t)(first * t.stride[0] * format_storage_bytes(t.storage));
    t.shape[0] = count;
    return t;
}

static int64_t chunk_of(const struct layer_context *context)
{
    bool chunked = context->sequence_chunks > 1 && !context->tp;
    return chunked ? context->seq / context->sequence_chunks : layer_rows(context);
}

static bool is_chunked(const struct head_saved *saved)
{
    return saved->chunk < saved->x.shape[0];
}

static void make_logits(const struct layer_context *context, struct head_saved *saved, struct tensor in, struct tensor output, int64_t first)
{
    linear_forward(context, saved->format, saved->logits, some_rows(in, first, saved->chunk), output, no_bias);
}

/* dz in the place of the logits that are there. */
static void make_dz(const struct layer_context *context, struct head_saved *saved, struct tensor weight, int64_t first)
{
    context->ops->cross_entropy_backward(saved->logits, saved->logits, some_rows(saved->lse, first, saved->chunk), saved->targets + first,
                                         some_rows(weight, first, saved->chunk));
    tensor_round(saved->logits, context->precision->logits);
}

struct head_saved *head_forward(const struct layer_context *whole_context, struct tensor token_loss, struct tensor x,
                                const int32_t *targets, const struct head_weights *weights, struct arena *arena)
{
    const struct layer_context own = layer_part_context(whole_context, TENSOR_VOCABULARY), *context = &own;
    const struct model_config *model = context->model;
    const struct ops *ops = context->ops;
    int64_t rows = layer_rows(context);
    ASSERT(x.dims == 2 && x.shape[0] == layer_slice_rows(context) && x.shape[1] == model->dim && x.storage == ops->storage);
    ASSERT(token_loss.dims == 1 && token_loss.shape[0] == rows && token_loss.storage == ops->storage);

    struct head_saved *saved = arena_zalloc(arena, sizeof *saved);
    saved->x = x;
    saved->rstd = layer_vector_alloc(context, x.shape[0], arena);
    saved->normed = layer_slice_alloc(context, model->dim, arena);
    ops->rmsnorm_forward(saved->normed, saved->rstd, x, weights->norm, model->norm_eps);
    tensor_round(saved->normed, precision_activation(context->precision));
    int64_t vocab = weights->output.shape[0];
    saved->chunk = chunk_of(context);
    saved->format = context->precision->logits;
    saved->logits = tensor_2d(arena_alloc(arena, (size_t)(saved->chunk * vocab) * format_storage_bytes(ops->storage)), ops->storage, saved->chunk, vocab);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor in = sequence_gather(context, &site_sp_gather, saved->normed, precision_activation(context->precision), context->scratch);
    saved->lse = layer_vector_alloc(context, rows, arena);
    saved->targets = own_targets(context, targets, vocab, arena);
    for (int64_t first = 0; first < rows; first += saved->chunk) {
        make_logits(context, saved, in, weights->output, first);
        ops->cross_entropy_forward(some_rows(token_loss, first, saved->chunk), some_rows(saved->lse, first, saved->chunk), saved->logits, saved->targets + first);
    }
    arena_release(context->scratch, mark);
    if (context->tp) merge_parts(context, saved, token_loss, targets);
    return saved;
}

struct tensor head_logits(const struct head_saved *saved)
{
    return saved->logits;
}

/* The logsumexp taken for a constant, as a raw collective leaves it: dz[t,:] = - w[t] onehot(target). */
static void target_gradient(const struct layer_context *context, const struct head_saved *saved, struct tensor weight)
{
    struct tensor dz = saved->logits;
    memset(dz.data, 0, (size_t)tensor_bytes(dz));
    for (int64_t t = 0; t < dz.shape[0]; t++) {
        if (saved->targets[t] < 0) continue;
        format_set(dz.data, (size_t)(t * dz.shape[1] + saved->targets[t]), dz.storage, -format_get(weight.data, (size_t)t, dz.storage));
    }
    tensor_round(dz, context->precision->logits);
}

void head_backward_input(const struct layer_context *whole_context, struct tensor dx, struct tensor weight,
                         const int32_t *targets, const struct head_weights *weights, struct head_saved *saved,
                         struct arena *arena)
{
    const struct layer_context own = layer_part_context(whole_context, TENSOR_VOCABULARY), *context = &own;
    const struct ops *ops = context->ops;
    ASSERT_MESSAGE(saved->dnormed.data == NULL, "the logits are gone after one head_backward_input");
    ASSERT(weight.dims == 1 && weight.shape[0] == layer_rows(context) && weight.storage == ops->storage);

    struct tensor d_in = layer_matrix_alloc(context, context->model->dim, arena);
    bool is_constant = context->tp && !layer_choice(context, &site_tp_loss_gradient, context->model->layers + 1, true);
    saved->output = weights->output;
    saved->weight = weight;
    if (!context->tp) saved->targets = targets;
    for (int64_t first = 0; first < weight.shape[0]; first += saved->chunk) {
        if (is_chunked(saved)) make_logits(context, saved, saved->normed, weights->output, first);
        if (is_constant) target_gradient(context, saved, weight);
        else make_dz(context, saved, weight, first);
        linear_backward_input(context, precision_activation(context->precision), some_rows(d_in, first, saved->chunk), saved->logits, weights->output, false);
    }
    saved->dnormed = column_parallel_backward(context, precision_activation(context->precision), d_in, arena);
    ops->rmsnorm_backward_input(dx, saved->dnormed, saved->x, weights->norm, saved->rstd);
    tensor_round(dx, context->precision->residual);
}

void head_backward_weight(const struct layer_context *whole_context, struct head_weights *gradients,
                          struct head_saved *saved)
{
    const struct layer_context own = layer_part_context(whole_context, TENSOR_VOCABULARY), *context = &own;
    const struct ops *ops = context->ops;
    ASSERT_MESSAGE(saved->dnormed.data != NULL, "head_backward_weight before head_backward_input");

    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor in = sequence_gather(context, &site_sp_gather_again, saved->normed, precision_activation(context->precision), context->scratch);
    for (int64_t first = 0; first < layer_rows(context); first += saved->chunk) {
        if (is_chunked(saved)) {
            make_logits(context, saved, in, saved->output, first);
            make_dz(context, saved, saved->weight, first);
        }
        linear_backward_weight(context, gradients->output, no_bias, saved->logits, some_rows(in, first, saved->chunk));
    }
    arena_release(context->scratch, mark);
    ops->rmsnorm_backward_weight(gradients->norm, saved->dnormed, saved->x, saved->rstd);
}
