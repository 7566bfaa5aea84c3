/* dispatch, local: every rank has all experts, and nothing moves. */
#include "model/deviations.h"
#include "model/layers/dispatch.h"
#include "model/layers/moe_network.h"

static void plan(const struct layer_context *context, struct dispatch *d, struct arena *arena)
{
    (void)context, (void)arena;
    d->rows = d->own.rows;
    d->bounds = d->own.bounds;
}

static void send(const struct layer_context *context, struct dispatch *d, struct tensor normed, struct arena *arena)
{
    (void)context, (void)d, (void)normed, (void)arena;
}

static void sort(const struct layer_context *context, struct dispatch *d, struct tensor normed, struct arena *arena)
{
    d->own_in = d->in = rows_alloc(context, d->rows, context->model->dim, arena);
    context->ops->gather_rows(d->in, normed, d->own.from);
    tensor_site(context->plan, &site_moe_dispatch, context->where, d->in);
}

static void combine(const struct layer_context *context, struct dispatch *d, struct tensor routed, struct arena *arena)
{
    (void)arena;
    d->own_out = d->out;
    context->ops->scatter_add_rows(routed, d->out, d->own.back_token, d->own.weight);
}

static void combine_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_out, struct tensor d_weight, struct tensor dy,
                             struct arena *arena)
{
    (void)arena;
    dispatch_weigh_backward(context, &d->own, d->own_out, d_out, d_weight, dy);
}

static void backward(const struct layer_context *context, struct dispatch *d, struct tensor d_normed, struct tensor d_rows, struct arena *arena)
{
    (void)arena;
    context->ops->scatter_add_rows(d_normed, d_rows, d->own.from, (struct tensor){.data = NULL});
}

const struct dispatcher dispatcher_local = {
    .name = "local", .plan = plan, .send = send, .sort = sort, .combine = combine, .combine_backward = combine_backward, .backward = backward,
};
