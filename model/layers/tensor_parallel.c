/* tensor_parallel: see tensor_parallel.h. */
#include "model/layers/tensor_parallel.h"

#include "model/deviations.h"
#include "model/layers/linear.h"
#include "model/precision.h"

void tensor_parallel_sum(const struct layer_context *context, const struct site *site, struct tensor values, enum format wire)
{
    if (!context->tp) return;
    struct comm how = {.site = site, .where = context->where};
    struct buffer buffer = {values.data, (size_t)tensor_count(values), values.storage, wire, NULL};
    all_reduce(context->tp->communicator, context->tp->group, &how, buffer, REDUCE_SUM);
}

void row_parallel_forward(const struct layer_context *context, enum format format, struct tensor y, struct tensor x,
                          struct tensor weight, struct tensor bias)
{
    if (!context->tp) {
        linear_forward(context, format, y, x, weight, bias);
        return;
    }
    bool after = decision_site(context->plan, &site_tp_bias, context->where, true, true);
    linear_forward(context, format, y, x, weight, after ? (struct tensor){.data = NULL} : bias);
    tensor_parallel_sum(context, &site_tp_row_reduce, y, format);
    if (after && bias.data != NULL) context->ops->bias_forward(y, bias);
    tensor_round(y, format);
}

void column_parallel_backward(const struct layer_context *context, enum format format, struct tensor dx)
{
    if (!context->tp) return;
    tensor_parallel_sum(context, &site_tp_input_grad_reduce, dx, format);
    tensor_round(dx, format);
}
