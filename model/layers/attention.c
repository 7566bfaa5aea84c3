/* attention: from queries, keys and values to what the output projection reads; shared by the blocks that project
 * differently.
 *
 *   q, k turned by RoPE (model.rope)      o = softmax(q k^T / sqrt(D) + mask) v      out = o, its heads side by side
 *
 * q, o [batch, seq, heads, D]; k, v [batch, seq, kv_heads, D]: grouped queries as in Ainslie et al. 2023, query head h
 * reads key/value head h / (heads / kv_heads); equal counts are ordinary multi-head attention.
 *
 * With context parallelism seq is this rank's rows of each sequence, and model/context makes its queries meet the keys of all:
 * what is gathered or goes round there does so again in a recomputation of the core, on all members alike. */
#include "model/layers/attention.h"

#include <string.h>

#include "model/context/context.h"
#include "model/deviations.h"
#include "model/precision.h"

static struct tensor heads_4d(const struct layer_context *context, struct tensor t, int heads)
{
    return tensor_4d(t.data, t.storage, context->batch, context->seq, heads, context->model->head_dim);
}

static struct tensor heads_3d(const struct layer_context *context, struct tensor t, int heads)
{
    return tensor_3d(t.data, t.storage, layer_rows(context), heads, context->model->head_dim);
}

static struct tensor sequences_3d(const struct layer_context *context, struct tensor t)
{
    return tensor_3d(t.data, t.storage, context->batch, context->seq, t.shape[1]);
}

static void *scratch_alloc(const struct layer_context *context)
{
    return arena_alloc(context->scratch, context->ops->attention_scratch(context->seq, context->model->head_dim));
}

void attention_open(const struct layer_context *context, struct attention *attention, int64_t q_width, int64_t kv_width,
                    struct arena *arena)
{
    attention->heads = (int)(q_width / context->model->head_dim);
    attention->kv_heads = (int)(kv_width / context->model->head_dim);
    attention->q = layer_matrix_alloc(context, q_width, arena);
    attention->k = layer_matrix_alloc(context, kv_width, arena);
    attention->v = layer_matrix_alloc(context, kv_width, arena);
}

static const int32_t *turn_positions(const struct layer_context *context)
{
    return context->turn_positions ? context->turn_positions : context->positions;
}

static void turn(const struct layer_context *context, struct attention *attention)
{
    enum format format = precision_activation(context->precision);
    double base = context->model->rope_base;
    if (!context->model->rope) return;
    context->ops->rope_forward(heads_3d(context, attention->q, attention->heads), turn_positions(context), base);
    context->ops->rope_forward(heads_3d(context, attention->k, attention->kv_heads), turn_positions(context), base);
    tensor_round(attention->q, format);
    tensor_round(attention->k, format);
}

/* A fault that reads it otherwise needs the output as it was, for the backward. */
static void view(const struct layer_context *context, struct attention *attention, struct arena *arena)
{
    attention->viewed = attention->out;
    if (context->plan) {
        attention->viewed = layer_matrix_alloc(context, attention->out.shape[1], arena);
        memcpy(attention->viewed.data, attention->out.data, (size_t)tensor_bytes(attention->out));
        tensor_site_axes(context->plan, &site_attention_output_view, context->where, sequences_3d(context, attention->viewed), false);
    }
    layer_note(context, &site_attention_output_view, 0, attention->viewed);
}

/* The mask that is due, or what a fault makes of it. */
static struct attention_view mask_view(const struct layer_context *context)
{
    bool due = context->model->causal;
    return (struct attention_view){.q_documents = context->documents, .k_documents = context->documents, .window = context->model->window,
                                   .causal = decision_site(context->plan, &site_attention_mask, context->where, due, due)};
}

/* Memory for what stays until the backward. What a fault makes late is put there later still, in the same step. */
static struct arena *kept_in(const struct layer_context *context, struct arena *arena)
{
    if (context->plan) return rank_arena(communicator_rank(context->cp->communicator), ARENA_STEP);
    return arena == context->scratch ? NULL : arena;
}

/* The same among the rows of all members of cp. */
static struct context_call call_of(const struct layer_context *context, const struct attention *attention, const struct attention_view *seen, struct arena *arena)
{
    int heads = attention->heads, kv_heads = attention->kv_heads;
    return (struct context_call){.cp = context->cp, .ops = context->ops, .activation = precision_activation(context->precision), .softmax = context->precision->softmax,
        .batch = context->batch, .seq = context->whole_seq, .heads = heads, .kv_heads = kv_heads, .head_dim = context->model->head_dim,
        .causal = seen->causal, .window = seen->window, .documents = context->documents ? context->whole_documents : NULL,
        .plan = context->plan, .where = context->where, .unit = context->layer + 1, .record = context->record, .scratch = context->scratch,
        .kept = kept_in(context, arena), .saved = attention->context_saved, .numbers = context->numbers,
        .q = heads_4d(context, attention->q, heads), .k = heads_4d(context, attention->k, kv_heads), .v = heads_4d(context, attention->v, kv_heads),
        .out = heads_4d(context, attention->out, heads), .lse = attention->lse};
}

/* out and lse. */
static void meet(const struct layer_context *context, struct attention *attention, struct arena *arena)
{
    int heads = attention->heads, kv_heads = attention->kv_heads;
    struct attention_view seen = mask_view(context);
    if (context->cp) {
        struct context_call call = call_of(context, attention, &seen, arena);
        context_forward(&call);
        attention->context_saved = call.saved;
        return;
    }
    context->ops->attention_forward(heads_4d(context, attention->out, heads), attention->lse,
                                    heads_4d(context, attention->q, heads), heads_4d(context, attention->k, kv_heads),
                                    heads_4d(context, attention->v, kv_heads), &seen, context->precision->softmax, scratch_alloc(context));
}

static void meet_backward(const struct layer_context *context, const struct attention *attention, struct tensor d_out, struct tensor dq, struct tensor dk, struct tensor dv)
{
    int heads = attention->heads, kv_heads = attention->kv_heads;
    struct attention_view seen = mask_view(context);
    if (context->cp) {
        struct context_call call = call_of(context, attention, &seen, context->scratch);
        call.d_out = heads_4d(context, d_out, heads);
        call.dq = heads_4d(context, dq, heads);
        call.dk = heads_4d(context, dk, kv_heads);
        call.dv = heads_4d(context, dv, kv_heads);
        context_backward(&call);
        return;
    }
    context->ops->attention_backward(heads_4d(context, dq, heads), heads_4d(context, dk, kv_heads), heads_4d(context, dv, kv_heads),
                                     heads_4d(context, d_out, heads), heads_4d(context, attention->q, heads),
                                     heads_4d(context, attention->k, kv_heads), heads_4d(context, attention->v, kv_heads),
                                     heads_4d(context, attention->out, heads), attention->lse, &seen,
                                     context->precision->softmax, scratch_alloc(context));
}

void attention_turn(const struct layer_context *context, struct attention *attention)
{
    turn(context, attention);
    layer_tensor(context, &site_attention_qkv, 0, attention->q);
    layer_tensor(context, &site_attention_qkv, 1, attention->k);
    layer_tensor(context, &site_attention_qkv, 2, attention->v);
}

void attention_core(const struct layer_context *context, struct attention *attention, struct arena *arena)
{
    int heads = attention->heads;
    attention->out = layer_matrix_alloc(context, attention->q.shape[1], arena);
    struct tensor lse = layer_vector_alloc(context, layer_rows(context) * heads, arena);
    attention->lse = tensor_3d(lse.data, lse.storage, context->batch, heads, context->seq);
    struct arena_mark mark = arena_mark(context->scratch);
    meet(context, attention, arena);
    arena_release(context->scratch, mark);
    tensor_round(attention->out, precision_activation(context->precision));
    layer_note(context, &site_attention_mask, 0, attention->out); /* with cp behind more than the mask: all that its members do for each other */
    view(context, attention, arena);
}

void attention_backward(const struct layer_context *context, const struct attention *attention, struct tensor d_viewed,
                        struct tensor dq, struct tensor dk, struct tensor dv)
{
    enum format format = precision_activation(context->precision);
    int heads = attention->heads, kv_heads = attention->kv_heads;
    struct arena_mark mark = arena_mark(context->scratch);
    tensor_site_axes(context->plan, &site_attention_output_view, context->where, sequences_3d(context, d_viewed), true);
    meet_backward(context, attention, d_viewed, dq, dk, dv);
    arena_release(context->scratch, mark);
    if (context->model->rope) {
        context->ops->rope_backward(heads_3d(context, dq, heads), turn_positions(context), context->model->rope_base);
        context->ops->rope_backward(heads_3d(context, dk, kv_heads), turn_positions(context), context->model->rope_base);
    }
    tensor_round(dq, format);
    tensor_round(dk, format);
    tensor_round(dv, format);
}

double attention_flops(const struct model_config *model, int64_t tokens, int64_t q_width)
{
    return 4.0 * (double)tokens * (double)model->seq * (double)q_width;
}
