/* dispatch, replicated: all ranks of an expert-parallel group have the same tokens and route them alike; each computes its own
 * experts' rows, and the results are summed (dispatch_partial.c). Nothing goes out, neither forward nor backward: each rank has
 * the whole gradient of the sum already. Two copies of a token are told apart by nothing, so whatever is replicated (the router,
 * the shared expert) has the same gradient on each, once the two gradients that need it are summed. */
#include <string.h>

#include "model/layers/dispatch_partial.h"
#include "model/layers/moe_note.h"
#include "sim/ledger.h"

static void plan(const struct layer_context *context, struct dispatch *d, struct arena *arena)
{
    struct partial *p = d->state = arena_zalloc(arena, sizeof *p);
    partial_place(context, d);
    int64_t first = d->own.bounds[d->taken], *bounds = arena_alloc(arena, (size_t)(d->experts + 1) * sizeof *bounds);
    for (int e = 0; e <= d->experts; e++) bounds[e] = d->own.bounds[d->taken + e] - first;
    d->bounds = bounds;
    d->rows = bounds[d->experts];
    d->arrived = arena_zalloc(arena, (size_t)(context->ep->group->size * d->experts) * sizeof *d->arrived);
    for (int e = 0; e < d->experts; e++) d->arrived[context->ep->group->me * d->experts + e] = bounds[e + 1] - bounds[e];
    p->tokens = d->tokens;
    p->rows = (struct dispatch_rows){.rows = d->rows, .bounds = bounds, .from = d->own.from + first, .back_token = d->own.back_token + first,
                                     .back_slot = d->own.back_slot + first, .weight = tensor_rows(d->own.weight, first, d->rows)};
}

static void send(const struct layer_context *context, struct dispatch *d, struct tensor normed, struct arena *arena)
{
    (void)context, (void)d, (void)normed, (void)arena;
}

static void combine_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_out, struct tensor d_weight, struct tensor dy,
                             struct arena *arena)
{
    const struct expert_parallel *ep = context->ep;
    (void)arena;
    if (dispatch_probes(context) > 0) dispatch_put_probes(context, d, ep->arrived_probes);
    if (ep->arrived_ledger) {
        ledger_clear(ep->arrived_ledger);
        if (ep->ledger) ledger_copy(ep->arrived_ledger, ep->ledger);
    }
    moe_note_rows(context, DISPATCH_GRAD_SENT, dy);
    partial_combine_backward(context, d, d_out, d_weight, dy);
}

const struct dispatcher dispatcher_replicated = {
    .name = "replicated", .plan = plan, .send = send, .sort = partial_sort, .combine = partial_combine, .combine_backward = combine_backward,
    .backward = partial_backward,
};
