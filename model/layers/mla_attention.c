/* mla_attention: latent attention, its queries, keys and values through low-rank projections, with its norm before and
 * its residual after.
 *
 *   n = rmsnorm(x)
 *   a = n Wqd^T + bqd    q = a Wqu^T + bqu         (q_lora_rank 0: q = n Wq^T + bq)
 *   c = n Wkd^T + bkd    [k | v] = c Wku^T + bku   all heads' keys, then all heads' values
 *   o = attention(q, k, v)                         y = x + (o Wo^T + bo)
 *
 * x, y, n [T,C]; a [T,Rq]; c [T,Rkv]; q, k, v, o [T, H*D]. Wku [2 H*D, Rkv]: its upper half is the keys', so two
 * products with half of its rows give the same bits as one, and k and v need no copy.
 * This is PanGu's form: no norm on the latents, and RoPE (where model.rope) turns whole heads; DeepSeek-V2's, with its
 * separate rotary part, is another block.
 *
 * With dropout (dropout.c) y = x + m (o Wo^T + bo), and the matrices' gradients come from m dy in the place of dy.
 *
 * Backward, with dy:
 *   do = dy Wo   (dq, dk, dv) = attention'(do)
 *   da = dq Wqu   dc = dk Wk + dv Wv   dn = da Wqd + dc Wkd, one chain an element in this order
 *   dx = dy + rmsnorm'(dn);   dW += (gradient of the output)^T input for each matrix
 *
 * Tensor parallelism splits Wqu by heads, each half of Wku by heads, Wo by its inputs; the down projections are whole on
 * every rank, so the gradients of their outputs are summed (model/layers/tensor_parallel.h).
 * With sequence parallelism x, y, n, the latents and their gradients are slices; the down projections are computed on them,
 * the latents gathered before the up projections, o Wo^T reduced and scattered (model/layers/sequence_parallel.h).
 * Latent attention: DeepSeek-V2 (2024), section 2.1. */
#include "model/layers/attention.h"
#include "model/layers/dropout.h"
#include "model/layers/layers.h"
#include "model/layers/linear.h"
#include "model/layers/sequence_parallel.h"
#include "model/layers/tensor_parallel.h"
#include "model/params.h"
#include "model/precision.h"

enum matrix { Q_DOWN, Q_UP, KV_DOWN, KV_UP, OUT, MATRICES };
enum { NORM };

static bool has_latent_queries(const struct model_config *model)
{
    return model->mla.q_lora_rank > 0;
}

/* The norm comes first, then the matrices, then, where model.bias, their biases; without latent queries there is no
 * Q_DOWN. */
static int matrix_at(const struct model_config *model, enum matrix matrix)
{
    return 1 + (int)matrix - (!has_latent_queries(model) && matrix > Q_DOWN);
}

static int bias_at(const struct model_config *model, enum matrix matrix)
{
    return matrix_at(model, matrix) + matrix_at(model, OUT);
}

int mla_attention_params(const struct model_config *model, int layer, struct param_info *ret)
{
    int64_t width = (int64_t)model->heads * model->head_dim, q_rank = model->mla.q_lora_rank;
    int values = matrix_at(model, KV_UP), last = matrix_at(model, OUT);
    if (!ret) return 1 + (model->bias ? 2 : 1) * last;
    ret[NORM] = param_norm(layer, "attention_norm", model->dim);
    if (q_rank) {
        ret[matrix_at(model, Q_DOWN)] = param_matrix(layer, "attention.q_lora_down", q_rank, model->dim);
        ret[matrix_at(model, Q_DOWN)].through_softmax = values;
    }
    ret[matrix_at(model, Q_UP)] = param_matrix(layer, q_rank ? "attention.q_lora_up" : "attention.wq", width, q_rank ? q_rank : model->dim);
    ret[matrix_at(model, Q_UP)].through_softmax = values;
    ret[matrix_at(model, KV_DOWN)] = param_matrix(layer, "attention.kv_lora_down", model->mla.kv_lora_rank, model->dim);
    ret[values] = param_matrix(layer, "attention.kv_lora_up", 2 * width, model->mla.kv_lora_rank);
    ret[last] = param_matrix(layer, "attention.out_proj", model->dim, width);
    ret[last].writes_residual = true;
    ret[last].cut = CUT_COLUMNS;
    ret[matrix_at(model, Q_UP)].cut = ret[values].cut = CUT_ROWS;
    ret[values].sections = 2; /* keys and values, each by heads */
    for (int i = 1; model->bias && i <= last; i++) ret[i + last] = param_bias(&ret[i], i);
    return mla_attention_params(model, layer, NULL);
}

struct mla_saved {
    struct tensor x, rstd, normed;
    struct tensor q_latent, kv_latent;     /* q_latent: normed where there is no query rank */
    struct attention attention;
    int dropout;                           /* the mask's draw */
    struct tensor dy, dq, dk, dv, dq_latent, dkv_latent, dnormed; /* from backward_input on */
    struct tensor d_out;                   /* dy, gathered */
};

/* The keys' (0) or values' (1) half of the up projection's rows, or of its bias. */
static struct tensor half(struct tensor up, int which)
{
    if (up.data == NULL) return up;
    int64_t rows = up.shape[0] / 2;
    return tensor_rows(up, which * rows, rows);
}

static struct tensor matrix(const struct layer_context *context, const struct tensor *weights, enum matrix matrix)
{
    return weights[matrix_at(context->model, matrix)];
}

static struct tensor bias(const struct layer_context *context, const struct tensor *weights, enum matrix matrix)
{
    return layer_bias(context, weights, bias_at(context->model, matrix));
}

static unsigned qkv_part(const struct layer_context *context)
{
    return model_layer_has_experts(context->model, context->layer) ? RECOMPUTE_MOE_MLA_QKV : RECOMPUTE_DENSE_MLA_QKV;
}

/* From the latents to queries, keys and values as attention reads them. */
static void project_up(const struct layer_context *context, struct mla_saved *saved, const struct tensor *weights, struct arena *arena)
{
    enum format format = precision_activation(context->precision);
    struct attention *a = &saved->attention;
    struct tensor up = matrix(context, weights, KV_UP), up_bias = bias(context, weights, KV_UP);
    attention_open(context, a, matrix(context, weights, Q_UP).shape[0], up.shape[0] / 2, arena);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor q_latent = sequence_gather(context, &site_sp_gather, saved->q_latent, format, context->scratch);
    struct tensor kv_latent = sequence_gather(context, &site_sp_gather, saved->kv_latent, format, context->scratch);
    linear_forward(context, format, a->q, q_latent, matrix(context, weights, Q_UP), bias(context, weights, Q_UP));
    linear_forward(context, format, a->k, kv_latent, half(up, 0), half(up_bias, 0));
    linear_forward(context, format, a->v, kv_latent, half(up, 1), half(up_bias, 1));
    arena_release(context->scratch, mark);
    attention_turn(context, a);
}

void *mla_attention_forward(const struct layer_context *context, struct tensor y, struct tensor x,
                            const struct tensor *weights, struct arena *arena)
{
    const struct ops *ops = context->ops;
    enum format format = precision_activation(context->precision);
    struct mla_saved *saved = arena_zalloc(arena, sizeof *saved);
    struct attention *a = &saved->attention;

    saved->x = x;
    saved->rstd = layer_vector_alloc(context, layer_slice_rows(context), arena);
    saved->normed = layer_slice_alloc(context, context->model->dim, arena);
    ops->rmsnorm_forward(saved->normed, saved->rstd, x, weights[NORM], context->model->norm_eps);
    tensor_round(saved->normed, format);
    saved->q_latent = saved->normed;
    if (has_latent_queries(context->model)) {
        saved->q_latent = layer_slice_alloc(context, context->model->mla.q_lora_rank, arena);
        linear_forward(context, format, saved->q_latent, saved->normed, matrix(context, weights, Q_DOWN), bias(context, weights, Q_DOWN));
    }
    saved->kv_latent = layer_slice_alloc(context, context->model->mla.kv_lora_rank, arena);
    linear_forward(context, format, saved->kv_latent, saved->normed, matrix(context, weights, KV_DOWN), bias(context, weights, KV_DOWN));
    struct arena_mark mark = arena_mark(context->scratch);
    project_up(context, saved, weights, layer_keeps(context, qkv_part(context), arena));
    attention_core(context, a, layer_keeps(context, RECOMPUTE_ATTENTION_CORE, arena));
    row_parallel_forward(context, format, y, a->viewed, matrix(context, weights, OUT), bias(context, weights, OUT));
    arena_release(context->scratch, mark);
    saved->dropout = dropout_forward(context, DROPOUT_ATTENTION, y);
    ops->vector_add(y.data, x.data, y.data, (size_t)tensor_count(y));
    tensor_round(y, context->precision->residual);
    return saved;
}

/* From the gradients of q, k, v to that of the normed input. */
static void backward_projections(const struct layer_context *context, struct mla_saved *saved, const struct tensor *weights,
                                 struct arena *arena)
{
    enum format format = precision_activation(context->precision);
    if (has_latent_queries(context->model)) {
        saved->dq_latent = layer_matrix_alloc(context, context->model->mla.q_lora_rank, arena);
        linear_backward_input(context, format, saved->dq_latent, saved->dq, matrix(context, weights, Q_UP), false);
        saved->dq_latent = column_parallel_backward(context, format, saved->dq_latent, arena);
        saved->dnormed = layer_slice_alloc(context, context->model->dim, arena);
        linear_backward_input(context, format, saved->dnormed, saved->dq_latent, matrix(context, weights, Q_DOWN), false);
    } else {
        struct tensor d_in = layer_matrix_alloc(context, context->model->dim, arena);
        linear_backward_input(context, format, d_in, saved->dq, matrix(context, weights, Q_UP), false);
        saved->dnormed = saved->dq_latent = column_parallel_backward(context, format, d_in, arena);
    }
    saved->dkv_latent = layer_matrix_alloc(context, context->model->mla.kv_lora_rank, arena);
    linear_backward_input(context, format, saved->dkv_latent, saved->dk, half(matrix(context, weights, KV_UP), 0), false);
    linear_backward_input(context, format, saved->dkv_latent, saved->dv, half(matrix(context, weights, KV_UP), 1), true);
    saved->dkv_latent = column_parallel_backward(context, format, saved->dkv_latent, arena);
    linear_backward_input(context, format, saved->dnormed, saved->dkv_latent, matrix(context, weights, KV_DOWN), true);
}

void mla_attention_backward_input(const struct layer_context *context, struct tensor dx, struct tensor dy,
                                  const struct tensor *weights, void *block_saved, struct arena *arena)
{
    const struct ops *ops = context->ops;
    struct mla_saved *saved = block_saved;
    struct attention *a = &saved->attention;

    if (context->recompute & qkv_part(context)) project_up(context, saved, weights, arena);
    if (context->recompute & RECOMPUTE_ATTENTION_CORE) attention_core(context, a, arena);
    saved->dy = dropout_backward(context, DROPOUT_ATTENTION, saved->dropout, dy, arena);
    saved->d_out = sequence_gather(context, &site_sp_output_grad_gather, saved->dy, context->precision->residual, arena);
    saved->dq = layer_matrix_alloc(context, a->q.shape[1], arena);
    saved->dk = layer_matrix_alloc(context, a->k.shape[1], arena);
    saved->dv = layer_matrix_alloc(context, a->v.shape[1], arena);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor d_viewed = layer_matrix_alloc(context, a->q.shape[1], context->scratch);
    linear_backward_input(context, precision_activation(context->precision), d_viewed, saved->d_out, matrix(context, weights, OUT), false);
    attention_backward(context, a, d_viewed, saved->dq, saved->dk, saved->dv);
    arena_release(context->scratch, mark);

    backward_projections(context, saved, weights, arena);
    ops->rmsnorm_backward_input(dx, saved->dnormed, saved->x, weights[NORM], saved->rstd);
    ops->vector_add(dx.data, dy.data, dx.data, (size_t)tensor_count(dx));
    tensor_round(dx, context->precision->residual);
}

void mla_attention_backward_weight(const struct layer_context *context, struct tensor *gradients, void *block_saved)
{
    const struct mla_saved *saved = block_saved;
    enum format format = precision_activation(context->precision);
    struct tensor up_bias = bias(context, gradients, KV_UP);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor q_latent = sequence_gather(context, &site_sp_gather_again, saved->q_latent, format, context->scratch);
    struct tensor kv_latent = sequence_gather(context, &site_sp_gather_again, saved->kv_latent, format, context->scratch);
    row_parallel_backward_weight(context, matrix(context, gradients, OUT), bias(context, gradients, OUT), saved->d_out, saved->dy, saved->attention.viewed);
    linear_backward_weight(context, matrix(context, gradients, Q_UP), bias(context, gradients, Q_UP), saved->dq, q_latent);
    if (has_latent_queries(context->model))
        linear_backward_weight(context, matrix(context, gradients, Q_DOWN), bias(context, gradients, Q_DOWN), saved->dq_latent, saved->normed);
    linear_backward_weight(context, half(matrix(context, gradients, KV_UP), 0), half(up_bias, 0), saved->dk, kv_latent);
    linear_backward_weight(context, half(matrix(context, gradients, KV_UP), 1), half(up_bias, 1), saved->dv, kv_latent);
    arena_release(context->scratch, mark);
    linear_backward_weight(context, matrix(context, gradients, KV_DOWN), bias(context, gradients, KV_DOWN), saved->dkv_latent, saved->normed);
    context->ops->rmsnorm_backward_weight(gradients[NORM], saved->dnormed, saved->x, saved->rstd);
}

double mla_attention_up_flops(const struct model_config *model, int64_t tokens)
{
    int64_t width = (int64_t)model->heads * model->head_dim, q_rank = model->mla.q_lora_rank;
    return linear_forward_flops(tokens, q_rank ? q_rank : model->dim, width) + linear_forward_flops(tokens, model->mla.kv_lora_rank, 2 * width);
}

double mla_attention_forward_flops(const struct model_config *model, int64_t tokens)
{
    int64_t width = (int64_t)model->heads * model->head_dim;
    int64_t q_rank = model->mla.q_lora_rank, kv_rank = model->mla.kv_lora_rank;
    double queries = q_rank ? linear_forward_flops(tokens, model->dim, q_rank) + linear_forward_flops(tokens, q_rank, width)
                            : linear_forward_flops(tokens, model->dim, width);
    return queries + linear_forward_flops(tokens, model->dim, kv_rank) + linear_forward_flops(tokens, kv_rank, 2 * width) +
           linear_forward_flops(tokens, width, model->dim) + attention_flops(model, tokens, width);
}
