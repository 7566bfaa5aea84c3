/* tensor_parallel: see tensor_parallel.h. */
#include "model/layers/tensor_parallel.h"

#include <string.h>

#include "model/layers/linear.h"
#include "model/layers/sequence_parallel.h"
#include "model/precision.h"
#include "model/record.h"
#include "model/vectors.h"

int tensor_parallel_unit(const struct layer_context *context, const struct site *site)
{
    if (context->where.layer >= 0) return context->where.layer + 1;
    return site == &site_tp_embedding_reduce || site == &site_sp_output_grad_gather ? 0 : context->model->layers + 1;
}

void tensor_parallel_sum(const struct layer_context *context, const struct site *site, struct tensor values, enum format wire)
{
    if (!context->tp) return;
    struct comm how = {.site = site, .where = context->where};
    size_t count = (size_t)tensor_count(values);
    bool watch = context->watch && context->record;
    struct sum_fact fact = {.site = site, .step = context->where.step, .microbatch = context->where.microbatch, .unit = tensor_parallel_unit(context, site)};
    if (watch) context->ops->vector_sketch(fact.sent, values.data, count);
    all_reduce(context->tp->communicator, context->tp->group, &how, (struct buffer){values.data, count, values.storage, wire, NULL}, REDUCE_SUM);
    if (!watch) return;
    context->ops->vector_sketch(fact.received, values.data, count);
    record_push(context->record, sums, fact);
}

void row_parallel_forward(const struct layer_context *context, enum format format, struct tensor y, struct tensor x,
                          struct tensor weight, struct tensor bias)
{
    if (!context->tp) {
        linear_forward(context, format, y, x, weight, bias);
        return;
    }
    bool after = layer_choice(context, &site_tp_bias, context->layer + 1, true);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor part = context->sequence_split ? layer_matrix_alloc(context, y.shape[1], context->scratch) : y;
    linear_forward(context, format, part, x, weight, after ? (struct tensor){.data = NULL} : bias);
    if (context->sequence_split) sequence_reduce_scatter(context, &site_tp_row_reduce, y, part, format);
    else tensor_parallel_sum(context, &site_tp_row_reduce, y, format);
    arena_release(context->scratch, mark);
    if (after && bias.data != NULL) context->ops->bias_forward(y, bias);
    tensor_round(y, format);
}

void row_parallel_backward_weight(const struct layer_context *context, struct tensor dweight, struct tensor dbias, struct tensor dy,
                                  struct tensor dy_slice, struct tensor x)
{
    bool whole = !context->tp || dbias.data == NULL || layer_choice(context, &site_tp_bias_gradient, context->layer + 1, true);
    bool apart = context->sequence_split || !whole;
    linear_backward_weight(context, dweight, apart ? (struct tensor){.data = NULL} : dbias, dy, x);
    if (!apart || dbias.data == NULL) return;
    if (whole) {
        context->ops->bias_backward(dbias, dy_slice);
        return;
    }
    struct arena_mark mark = arena_mark(context->scratch); /* each rank adds b / tp: so does the chain rule */
    struct tensor part = layer_vector_alloc(context, dbias.shape[0], context->scratch);
    size_t count = (size_t)tensor_count(part);
    memset(part.data, 0, (size_t)tensor_bytes(part));
    context->ops->bias_backward(part, dy_slice);
    context->ops->vector_scale(part.data, 1.0 / context->tp->group->size, count);
    context->ops->vector_add(dbias.data, dbias.data, part.data, count);
    arena_release(context->scratch, mark);
}

struct tensor column_parallel_backward(const struct layer_context *context, enum format format, struct tensor dx, struct arena *arena)
{
    if (!context->tp) return dx;
    if (context->sequence_split) return sequence_gather_backward(context, dx, format, arena);
    tensor_parallel_sum(context, &site_tp_input_grad_reduce, dx, format);
    tensor_round(dx, format);
    return dx;
}
