/* dispatch_partial: see dispatch_partial.h.
 *
 *   combine            each rank adds up its own experts' weighed results, in the order of experts; the sum over the ranks is
 *                      each token's (ep.combine)
 *   combine backward   the gradient of a weight is the inner product at its expert's rank, 0 at the others: their sum is exact
 *                      (ep.gate_grad)
 *   backward           each rank adds up its own experts' part of a token's gradient; the sum is the token's (ep.dispatch_grad)
 * Sums are reduce-scatters to the ranks that the tokens are from, or all-reduces where all ranks have the same tokens; in the format
 * of activations, weights' gradients in the storage. */
#include "model/layers/dispatch_partial.h"

#include <string.h>

#include "model/deviations.h"
#include "model/layers/moe_network.h"
#include "model/layers/moe_note.h"
#include "model/precision.h"

/* Sum over the ranks of [all tokens, width], added to own rows of `to` [T, width]. */
static void add_sum(const struct layer_context *context, const struct dispatch *d, const struct site *site, struct tensor to, struct tensor all,
                    enum format wire)
{
    const struct expert_parallel *ep = context->ep;
    const struct partial *p = d->state;
    struct comm how = dispatch_comm(context, site);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor sum = all;
    if (p->of_rank) {
        size_t *counts = arena_alloc(context->scratch, (size_t)ep->group->size * sizeof *counts);
        for (int i = 0; i < ep->group->size; i++) counts[i] = p->of_rank[i] * (size_t)to.shape[1];
        sum = rows_alloc(context, d->tokens, to.shape[1], context->scratch);
        reduce_scatter(ep->communicator, ep->group, &how, dispatch_buffer(sum, wire), dispatch_buffer(all, wire), counts, REDUCE_SUM);
    } else {
        all_reduce(ep->communicator, ep->group, &how, dispatch_buffer(all, wire), REDUCE_SUM);
    }
    struct tensor own = tensor_rows(to, d->first_token, d->tokens);
    if (site == &site_ep_dispatch_grad) moe_note_rows(context, DISPATCH_GRAD_HOME, tensor_2d(sum.data, sum.storage, d->tokens, to.shape[1]));
    context->ops->vector_add(own.data, own.data, sum.data, (size_t)tensor_count(own));
    arena_release(context->scratch, mark);
}

static struct tensor zeros(const struct layer_context *context, int64_t rows, int64_t columns)
{
    struct tensor t = rows_alloc(context, rows, columns, context->scratch);
    memset(t.data, 0, (size_t)tensor_bytes(t));
    return t;
}

void partial_place(const struct layer_context *context, struct dispatch *d)
{
    if (decision_site(context->plan, &site_ep_coordinate, context->where, true, true)) return;
    d->taken = (context->tp ? context->tp->group->me % context->ep->group->size : 0) * d->experts;
}

void partial_sort(const struct layer_context *context, struct dispatch *d, struct tensor normed, struct arena *arena)
{
    const struct partial *p = d->state;
    d->in = rows_alloc(context, d->rows, context->model->dim, arena);
    context->ops->gather_rows(d->in, p->normed.data ? p->normed : normed, p->rows.from);
    tensor_site(context->plan, &site_moe_dispatch, context->where, d->in);
    moe_note_row_weights(context, p->rows.weight);
}

void partial_combine(const struct layer_context *context, struct dispatch *d, struct tensor routed, struct arena *arena)
{
    const struct partial *p = d->state;
    enum format format = precision_activation(context->precision);
    (void)arena;
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor all = zeros(context, p->tokens, routed.shape[1]);
    context->ops->scatter_add_rows(all, d->out, p->rows.back_token, p->rows.weight);
    tensor_round(all, format);
    add_sum(context, d, &site_ep_combine, routed, all, format);
    moe_note_rows(context, DISPATCH_HOME, tensor_rows(routed, d->first_token, d->tokens));
    arena_release(context->scratch, mark);
}

void partial_combine_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_out, struct tensor d_weight, struct tensor dy)
{
    const struct partial *p = d->state;
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor all = zeros(context, p->tokens, d_weight.shape[1]);
    dispatch_weigh_backward(context, &p->rows, d->out, d_out, all, dy);
    struct tensor gates = rows_alloc(context, d->rows, 1, context->scratch), slots = tensor_2d(all.data, all.storage, tensor_count(all), 1);
    context->ops->gather_rows(gates, slots, p->rows.back_slot);
    moe_note_row_gates(context, gates);
    add_sum(context, d, &site_ep_gate_grad, d_weight, all, context->ops->storage);
    arena_release(context->scratch, mark);
}

void partial_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_normed, struct tensor d_rows, struct arena *arena)
{
    const struct partial *p = d->state;
    enum format format = precision_activation(context->precision);
    (void)arena;
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor all = zeros(context, p->tokens, d_normed.shape[1]);
    context->ops->scatter_add_rows(all, d_rows, p->rows.from, (struct tensor){.data = NULL});
    tensor_round(all, format);
    add_sum(context, d, &site_ep_dispatch_grad, d_normed, all, format);
    arena_release(context->scratch, mark);
}
