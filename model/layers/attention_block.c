/* attention_block: self-attention with its norm before and its residual after.
 *
 *   n = rmsnorm(x)            q = n Wq^T + bq   k = n Wk^T + bk   v = n Wv^T + bv
 *   q, k turned by RoPE (model.rope)            o = softmax(q k^T / sqrt(D) + mask) v
 *   y = x + (o Wo^T + bo)
 *
 * x, y, n [T,C]; q, o [T, H*D]; k, v [T, KV*D]; T = batch x seq. Grouped queries: query head h reads
 * key/value head h / (H/KV) (Ainslie et al. 2023); H = KV is ordinary multi-head attention.
 *
 * Backward, with dy:
 *   do = dy Wo   (dq, dk, dv) = attention'(do)   dq, dk turned back
 *   dn = dq Wq + dk Wk + dv Wv, one chain an element in this order
 *   dx = dy + rmsnorm'(dn)
 *   dWo += dy^T o   dWq += dq^T n   dWk += dk^T n   dWv += dv^T n   dw_norm += rmsnorm'(dn, x)
 *
 * Pre-norm as in GPT-2; RMSNorm: Zhang & Sennrich 2019; RoPE: Su et al. 2021. */
#include "model/layers/layers.h"
#include "model/layers/linear.h"
#include "model/params.h"
#include "model/precision.h"

enum { NORM, WQ, WK, WV, WO, BQ, BK, BV, BO }; /* biases only where model.bias */

int attention_block_params(const struct model_config *model, int layer, struct param_info *ret)
{
    int64_t q_width = (int64_t)model->heads * model->head_dim, kv_width = (int64_t)model->kv_heads * model->head_dim;
    if (!ret) return model->bias ? BO + 1 : WO + 1;
    ret[NORM] = param_norm(layer, "attention_norm", model->dim);
    ret[WQ] = param_matrix(layer, "attention.wq", q_width, model->dim);
    ret[WK] = param_matrix(layer, "attention.wk", kv_width, model->dim);
    ret[WV] = param_matrix(layer, "attention.wv", kv_width, model->dim);
    ret[WO] = param_matrix(layer, "attention.wo", model->dim, q_width);
    ret[WO].writes_residual = true;
    ret[WQ].through_softmax = ret[WK].through_softmax = WV;
    for (int i = WQ; model->bias && i <= WO; i++) ret[i - WQ + BQ] = param_bias(&ret[i], i);
    return attention_block_params(model, layer, NULL);
}

struct attention_saved {
    struct tensor x, rstd, normed;    /* the norm's input, 1/rms, output */
    struct tensor q, k, v;            /* after RoPE */
    struct tensor out, lse;           /* of the attention */
    struct tensor dy, dq, dk, dv, dnormed; /* from backward_input on; dq and dk before RoPE */
};

static struct tensor attention_heads_4d(const struct layer_context *context, struct tensor t, int heads)
{
    return tensor_4d(t.data, t.storage, context->batch, context->seq, heads, context->model->head_dim);
}

static struct tensor attention_heads_3d(const struct layer_context *context, struct tensor t, int heads)
{
    return tensor_3d(t.data, t.storage, layer_rows(context), heads, context->model->head_dim);
}

static void *attention_scratch_alloc(const struct layer_context *context)
{
    return arena_alloc(context->scratch, context->ops->attention_scratch(context->seq, context->model->head_dim));
}

/* q, k, v from the normed input, q and k turned. */
static void attention_project(const struct layer_context *context, struct attention_saved *saved,
                              const struct tensor *weights, struct arena *arena)
{
    const struct model_config *model = context->model;
    const struct ops *ops = context->ops;
    int64_t q_width = (int64_t)model->heads * model->head_dim, kv_width = (int64_t)model->kv_heads * model->head_dim;

    saved->q = layer_matrix_alloc(context, q_width, arena);
    saved->k = layer_matrix_alloc(context, kv_width, arena);
    saved->v = layer_matrix_alloc(context, kv_width, arena);
    enum format format = precision_activation(context->precision);
    linear_forward(context, format, saved->q, saved->normed, weights[WQ], layer_bias(context, weights, BQ));
    linear_forward(context, format, saved->k, saved->normed, weights[WK], layer_bias(context, weights, BK));
    linear_forward(context, format, saved->v, saved->normed, weights[WV], layer_bias(context, weights, BV));
    if (model->rope) {
        ops->rope_forward(attention_heads_3d(context, saved->q, model->heads), context->positions, model->rope_base);
        ops->rope_forward(attention_heads_3d(context, saved->k, model->kv_heads), context->positions,
                          model->rope_base);
        tensor_round(saved->q, format);
        tensor_round(saved->k, format);
    }
}

void *attention_block_forward(const struct layer_context *context, struct tensor y, struct tensor x,
                              const struct tensor *weights, struct arena *arena)
{
    const struct model_config *model = context->model;
    const struct ops *ops = context->ops;
    struct attention_saved *saved = arena_zalloc(arena, sizeof *saved);

    saved->x = x;
    saved->rstd = layer_vector_alloc(context, layer_rows(context), arena);
    saved->normed = layer_matrix_alloc(context, model->dim, arena);
    ops->rmsnorm_forward(saved->normed, saved->rstd, x, weights[NORM], model->norm_eps);
    tensor_round(saved->normed, precision_activation(context->precision));
    attention_project(context, saved, weights, arena);

    saved->out = layer_matrix_alloc(context, (int64_t)model->heads * model->head_dim, arena);
    struct tensor lse = layer_vector_alloc(context, layer_rows(context) * model->heads, arena);
    saved->lse = tensor_3d(lse.data, lse.storage, context->batch, model->heads, context->seq);
    struct arena_mark mark = arena_mark(context->scratch);
    ops->attention_forward(attention_heads_4d(context, saved->out, model->heads), saved->lse,
                           attention_heads_4d(context, saved->q, model->heads),
                           attention_heads_4d(context, saved->k, model->kv_heads),
                           attention_heads_4d(context, saved->v, model->kv_heads), model->causal, context->documents,
                           context->precision->softmax, attention_scratch_alloc(context));
    arena_release(context->scratch, mark);
    tensor_round(saved->out, precision_activation(context->precision));

    linear_forward(context, precision_activation(context->precision), y, saved->out, weights[WO],
                   layer_bias(context, weights, BO));
    ops->vector_add(y.data, x.data, y.data, (size_t)tensor_count(y));
    tensor_round(y, context->precision->residual);
    return saved;
}

void attention_block_backward_input(const struct layer_context *context, struct tensor dx, struct tensor dy,
                                    const struct tensor *weights, void *block_saved, struct arena *arena)
{
    const struct model_config *model = context->model;
    const struct ops *ops = context->ops;
    struct attention_saved *saved = block_saved;
    int heads = model->heads, kv_heads = model->kv_heads;
    int64_t q_width = (int64_t)heads * model->head_dim, kv_width = (int64_t)kv_heads * model->head_dim;

    saved->dy = dy;
    saved->dq = layer_matrix_alloc(context, q_width, arena);
    saved->dk = layer_matrix_alloc(context, kv_width, arena);
    saved->dv = layer_matrix_alloc(context, kv_width, arena);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor d_out = layer_matrix_alloc(context, q_width, context->scratch);
    enum format format = precision_activation(context->precision);
    linear_backward_input(context, format, d_out, dy, weights[WO], false);
    ops->attention_backward(attention_heads_4d(context, saved->dq, heads),
                            attention_heads_4d(context, saved->dk, kv_heads),
                            attention_heads_4d(context, saved->dv, kv_heads), attention_heads_4d(context, d_out, heads),
                            attention_heads_4d(context, saved->q, heads),
                            attention_heads_4d(context, saved->k, kv_heads),
                            attention_heads_4d(context, saved->v, kv_heads),
                            attention_heads_4d(context, saved->out, heads), saved->lse, model->causal,
                            context->documents, context->precision->softmax, attention_scratch_alloc(context));
    arena_release(context->scratch, mark);
    if (model->rope) {
        ops->rope_backward(attention_heads_3d(context, saved->dq, heads), context->positions, model->rope_base);
        ops->rope_backward(attention_heads_3d(context, saved->dk, kv_heads), context->positions, model->rope_base);
    }
    tensor_round(saved->dq, format);
    tensor_round(saved->dk, format);
    tensor_round(saved->dv, format);

    saved->dnormed = layer_matrix_alloc(context, model->dim, arena);
    linear_backward_input(context, format, saved->dnormed, saved->dq, weights[WQ], false);
    linear_backward_input(context, format, saved->dnormed, saved->dk, weights[WK], true);
    linear_backward_input(context, format, saved->dnormed, saved->dv, weights[WV], true);
    ops->rmsnorm_backward_input(dx, saved->dnormed, saved->x, weights[NORM], saved->rstd);
    ops->vector_add(dx.data, dy.data, dx.data, (size_t)tensor_count(dx));
    tensor_round(dx, context->precision->residual);
}

void attention_block_backward_weight(const struct layer_context *context, struct tensor *gradients,
                                     void *block_saved)
{
    const struct ops *ops = context->ops;
    const struct attention_saved *saved = block_saved;

    linear_backward_weight(context, gradients[WO], layer_bias(context, gradients, BO), saved->dy,
                           saved->out);
    linear_backward_weight(context, gradients[WQ], layer_bias(context, gradients, BQ), saved->dq,
                           saved->normed);
    linear_backward_weight(context, gradients[WK], layer_bias(context, gradients, BK), saved->dk,
                           saved->normed);
    linear_backward_weight(context, gradients[WV], layer_bias(context, gradients, BV), saved->dv,
                           saved->normed);
    ops->rmsnorm_backward_weight(gradients[NORM], saved->dnormed, saved->x, saved->rstd);
}

/* Scores and the weighted sum of values: 2 x 2 S D a query and head. The causal mask is not taken off,
 * as is the convention when people report model FLOPs. */
double attention_block_forward_flops(const struct model_config *model, int64_t tokens)
{
    int64_t q_width = (int64_t)model->heads * model->head_dim, kv_width = (int64_t)model->kv_heads * model->head_dim;

    return linear_forward_flops(tokens, model->dim, q_width) + 2.0 * linear_forward_flops(tokens, model->dim, kv_width)
           + linear_forward_flops(tokens, q_width, model->dim)
           + 4.0 * (double)tokens * (double)model->seq * (double)q_width;
}
