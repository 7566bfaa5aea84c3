/* attention_block: self-attention with its norm before and its residual after.
 *
 *   n = rmsnorm(x)            q = n Wq^T + bq   k = n Wk^T + bk   v = n Wv^T + bv
 *   with model.qk_norm each head h, before RoPE:  q[t,h] = rmsnorm(q[t,h]; w_q)   k[t,h] = rmsnorm(k[t,h]; w_k)
 *   o = attention(q, k, v)    y = x + (o Wo^T + bo)
 *
 * w_q, w_k [D], the same for all heads: Qwen3. x, y, n [T,C]; q, o [T, H*D]; k, v [T, KV*D]; T = batch x seq; attention: model/layers/attention.c.
 *
 * With dropout (dropout.c) y = x + m (o Wo^T + bo), and the matrices' gradients come from m dy in the place of dy.
 *
 * Backward, with dy:
 *   do = dy Wo   (dq, dk, dv) = attention'(do)   with model.qk_norm:  dw_q += rmsnorm'(dq, q)   dq = rmsnorm'(dq); k alike
 *   dn = dq Wq + dk Wk + dv Wv, one chain an element in this order
 *   dx = dy + rmsnorm'(dn)
 *   dWo += dy^T o   dWq += dq^T n   dWk += dk^T n   dWv += dv^T n   dw_norm += rmsnorm'(dn, x)
 *
 * Tensor parallelism splits Wq, Wk, Wv by heads and Wo by its inputs (model/layers/tensor_parallel.h). Every rank has w_q and
 * w_k whole, but their gradients of its own heads alone: parts of a sum over tp, added once a step (model/sequence_grads.c).
 * With sequence parallelism x, y, n and their gradients are slices: n is gathered before Wq, Wk, Wv, o Wo^T reduced and
 * scattered (model/layers/sequence_parallel.h).
 * Pre-norm as in GPT-2; RMSNorm: Zhang & Sennrich 2019; RoPE: Su et al. 2021. */
#include "model/layers/attention.h"

#include <string.h>

#include "model/layers/dropout.h"
#include "model/layers/layers.h"
#include "model/layers/linear.h"
#include "model/layers/sequence_parallel.h"
#include "model/layers/tensor_parallel.h"
#include "model/params.h"
#include "model/precision.h"

enum { NORM, WQ, WK, WV, WO, BQ, BK, BV, BO }; /* biases only where model.bias; behind them, where model.qk_norm, the norms of heads */

static int query_norm(const struct model_config *model) { return model->bias ? BO + 1 : WO + 1; }
static int key_norm(const struct model_config *model) { return query_norm(model) + 1; }

static struct param_info head_norm(const struct model_config *model, int layer, const char *name)
{
    struct param_info info = param_norm(layer, name, model->head_dim);
    info.is_head_norm = true;
    return info;
}

int attention_block_params(const struct model_config *model, int layer, struct param_info *ret)
{
    int64_t q_width = (int64_t)model->heads * model->head_dim, kv_width = (int64_t)model->kv_heads * model->head_dim;
    if (!ret) return query_norm(model) + (model->qk_norm ? 2 : 0);
    ret[NORM] = param_norm(layer, "attention_norm", model->dim);
    ret[WQ] = param_matrix(layer, "attention.wq", q_width, model->dim);
    ret[WK] = param_matrix(layer, "attention.wk", kv_width, model->dim);
    ret[WV] = param_matrix(layer, "attention.wv", kv_width, model->dim);
    ret[WO] = param_matrix(layer, "attention.wo", model->dim, q_width);
    ret[WO].writes_residual = true;
    ret[WQ].cut = ret[WK].cut = ret[WV].cut = CUT_ROWS;
    ret[WO].cut = CUT_COLUMNS;
    ret[WQ].through_softmax = ret[WK].through_softmax = WV;
    for (int i = WQ; model->bias && i <= WO; i++) ret[i - WQ + BQ] = param_bias(&ret[i], i);
    if (model->qk_norm) {
        ret[query_norm(model)] = head_norm(model, layer, "attention.q_norm");
        ret[key_norm(model)] = head_norm(model, layer, "attention.k_norm");
        ret[query_norm(model)].through_softmax = ret[key_norm(model)].through_softmax = WV;
    }
    return attention_block_params(model, layer, NULL);
}

/* The norm of one matrix' heads: its input and 1/rms; the gradient of its output from backward_input on. */
struct heads_norm { struct tensor in, rstd, d_out; };

struct attention_saved {
    struct heads_norm q_norm, k_norm; /* model.qk_norm */
    struct tensor x, rstd, normed;    /* the norm's input, 1/rms, output */
    struct attention attention;
    int dropout;                      /* the mask's draw */
    struct tensor dy, dq, dk, dv, dnormed; /* from backward_input on */
    struct tensor d_out;              /* dy, gathered */
};

/* Its heads, one below the other: [T * heads, D]. */
static struct tensor rows_of_heads(const struct layer_context *context, struct tensor t)
{
    int64_t width = context->model->head_dim;
    return tensor_2d(t.data, t.storage, tensor_count(t) / width, width);
}

static void normalize_heads(const struct layer_context *context, struct heads_norm *norm, struct tensor heads, struct tensor weight, struct arena *arena)
{
    norm->in = layer_matrix_alloc(context, heads.shape[1], arena);
    memcpy(norm->in.data, heads.data, (size_t)tensor_bytes(heads));
    norm->rstd = layer_vector_alloc(context, tensor_count(heads) / context->model->head_dim, arena);
    context->ops->rmsnorm_forward(rows_of_heads(context, heads), norm->rstd, rows_of_heads(context, norm->in), weight, context->model->norm_eps);
    tensor_round(heads, precision_activation(context->precision));
}

/* Of the norm's input, from that of its output. */
static struct tensor normalize_heads_backward(const struct layer_context *context, struct heads_norm *norm, struct tensor d_out, struct tensor weight, struct arena *arena)
{
    norm->d_out = d_out;
    struct tensor d_in = layer_matrix_alloc(context, d_out.shape[1], arena);
    context->ops->rmsnorm_backward_input(rows_of_heads(context, d_in), rows_of_heads(context, d_out), rows_of_heads(context, norm->in), weight, norm->rstd);
    tensor_round(d_in, precision_activation(context->precision));
    return d_in;
}

void *attention_block_forward(const struct layer_context *context, struct tensor y, struct tensor x,
                              const struct tensor *weights, struct arena *arena)
{
    const struct ops *ops = context->ops;
    enum format format = precision_activation(context->precision);
    struct attention_saved *saved = arena_zalloc(arena, sizeof *saved);
    struct attention *a = &saved->attention;

    saved->x = x;
    saved->rstd = layer_vector_alloc(context, layer_slice_rows(context), arena);
    saved->normed = layer_slice_alloc(context, context->model->dim, arena);
    ops->rmsnorm_forward(saved->normed, saved->rstd, x, weights[NORM], context->model->norm_eps);
    tensor_round(saved->normed, format);
    attention_open(context, a, weights[WQ].shape[0], weights[WK].shape[0], arena);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor in = sequence_gather(context, &site_sp_gather, saved->normed, format, context->scratch);
    linear_forward(context, format, a->q, in, weights[WQ], layer_bias(context, weights, BQ));
    linear_forward(context, format, a->k, in, weights[WK], layer_bias(context, weights, BK));
    linear_forward(context, format, a->v, in, weights[WV], layer_bias(context, weights, BV));
    arena_release(context->scratch, mark);
    if (context->model->qk_norm) {
        normalize_heads(context, &saved->q_norm, a->q, weights[query_norm(context->model)], arena);
        normalize_heads(context, &saved->k_norm, a->k, weights[key_norm(context->model)], arena);
    }
    attention_turn(context, a);
    attention_core(context, a, layer_keeps(context, RECOMPUTE_ATTENTION_CORE, arena));
    row_parallel_forward(context, format, y, a->viewed, weights[WO], layer_bias(context, weights, BO));
    arena_release(context->scratch, mark);
    saved->dropout = dropout_forward(context, DROPOUT_ATTENTION, y);
    ops->vector_add(y.data, x.data, y.data, (size_t)tensor_count(y));
    tensor_round(y, context->precision->residual);
    return saved;
}

void attention_block_backward_input(const struct layer_context *context, struct tensor dx, struct tensor dy,
                                    const struct tensor *weights, void *block_saved, struct arena *arena)
{
    const struct ops *ops = context->ops;
    enum format format = precision_activation(context->precision);
    struct attention_saved *saved = block_saved;
    struct attention *a = &saved->attention;

    if (context->recompute & RECOMPUTE_ATTENTION_CORE) attention_core(context, a, arena);
    saved->dy = dropout_backward(context, DROPOUT_ATTENTION, saved->dropout, dy, arena);
    saved->d_out = sequence_gather(context, &site_sp_output_grad_gather, saved->dy, context->precision->residual, arena);
    saved->dq = layer_matrix_alloc(context, a->q.shape[1], arena);
    saved->dk = layer_matrix_alloc(context, a->k.shape[1], arena);
    saved->dv = layer_matrix_alloc(context, a->v.shape[1], arena);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor d_viewed = layer_matrix_alloc(context, a->q.shape[1], context->scratch);
    linear_backward_input(context, format, d_viewed, saved->d_out, weights[WO], false);
    attention_backward(context, a, d_viewed, saved->dq, saved->dk, saved->dv);
    arena_release(context->scratch, mark);
    if (context->model->qk_norm) {
        saved->dq = normalize_heads_backward(context, &saved->q_norm, saved->dq, weights[query_norm(context->model)], arena);
        saved->dk = normalize_heads_backward(context, &saved->k_norm, saved->dk, weights[key_norm(context->model)], arena);
    }

    saved->dnormed = layer_matrix_alloc(context, context->model->dim, arena);
    linear_backward_input(context, format, saved->dnormed, saved->dq, weights[WQ], false);
    linear_backward_input(context, format, saved->dnormed, saved->dk, weights[WK], true);
    linear_backward_input(context, format, saved->dnormed, saved->dv, weights[WV], true);
    saved->dnormed = column_parallel_backward(context, format, saved->dnormed, arena);
    ops->rmsnorm_backward_input(dx, saved->dnormed, saved->x, weights[NORM], saved->rstd);
    ops->vector_add(dx.data, dy.data, dx.data, (size_t)tensor_count(dx));
    tensor_round(dx, context->precision->residual);
}

static void backward_weight_of_heads(const struct layer_context *context, struct tensor gradient, const struct heads_norm *norm)
{
    context->ops->rmsnorm_backward_weight(gradient, rows_of_heads(context, norm->d_out), rows_of_heads(context, norm->in), norm->rstd);
}

void attention_block_backward_weight(const struct layer_context *context, struct tensor *gradients, void *block_saved)
{
    const struct attention_saved *saved = block_saved;
    row_parallel_backward_weight(context, gradients[WO], layer_bias(context, gradients, BO), saved->d_out, saved->dy, saved->attention.viewed);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor in = sequence_gather(context, &site_sp_gather_again, saved->normed, precision_activation(context->precision), context->scratch);
    linear_backward_weight(context, gradients[WQ], layer_bias(context, gradients, BQ), saved->dq, in);
    linear_backward_weight(context, gradients[WK], layer_bias(context, gradients, BK), saved->dk, in);
    linear_backward_weight(context, gradients[WV], layer_bias(context, gradients, BV), saved->dv, in);
    arena_release(context->scratch, mark);
    context->ops->rmsnorm_backward_weight(gradients[NORM], saved->dnormed, saved->x, saved->rstd);
    if (!context->model->qk_norm) return;
    backward_weight_of_heads(context, gradients[query_norm(context->model)], &saved->q_norm);
    backward_weight_of_heads(context, gradients[key_norm(context->model)], &saved->k_norm);
}

double attention_block_forward_flops(const struct model_config *model, int64_t tokens)
{
    int64_t q_width = (int64_t)model->heads * model->head_dim, kv_width = (int64_t)model->kv_heads * model->head_dim;
    return linear_forward_flops(tokens, model->dim, q_width) + 2.0 * linear_forward_flops(tokens, model->dim, kv_width)
           + linear_forward_flops(tokens, q_width, model->dim) + attention_flops(model, tokens, q_width);
}
