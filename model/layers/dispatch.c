/* dispatch: see dispatch.h. What is the same for all dispatchers, and the gathers over copies. */
#include "model/layers/dispatch.h"

#include <math.h>
#include <string.h>

#include "model/deviations.h"
#include "model/layers/moe_network.h"
#include "model/layers/moe_note.h"
#include "model/precision.h"
#include "model/sites.h"
#include "sim/assertion.h"

/* ---- parts ---- */

struct comm dispatch_comm(const struct layer_context *context, const struct site *site)
{
    return (struct comm){.site = site, .where = context->where};
}

struct buffer dispatch_buffer(struct tensor t, enum format wire)
{
    return (struct buffer){.data = t.data, .count = (size_t)tensor_count(t), .storage = t.storage, .wire = wire};
}

int64_t dispatch_count(double value, int64_t most)
{
    return value >= 0 && value <= (double)most ? (int64_t)value : 0;
}

void dispatch_transpose(const int64_t *lengths, int a_count, int b_count, int32_t *ret_index)
{
    int64_t at = 0, rows = 0;
    for (int b = 0; b < b_count; b++) {
        for (int a = 0; a < a_count; a++) {
            rows = 0;
            for (int before = 0; before < a * b_count + b; before++) rows += lengths[before];
            for (int64_t i = 0; i < lengths[a * b_count + b]; i++) ret_index[at++] = (int32_t)(rows + i);
        }
    }
}

int64_t dispatch_most_rows(const struct layer_context *context)
{
    int64_t rows = layer_rows(context) > 256 ? layer_rows(context) : 256;
    return 16 * rows * context->model->moe.top_k;
}

size_t dispatch_probes(const struct layer_context *context)
{
    return context->ep->arrived_probes ? context->ep->probe_count : 0;
}

/* Of the ranks that send parts of one micro-batch to a group, the first stands for all. */
static bool stands_for_all(const struct layer_context *context, const struct dispatch *d)
{
    bool later_slice = context->is_slice && context->ep->over_tp && context->tp->group->me > 0;
    return d->first_token == 0 && !later_slice;
}

void dispatch_put_probes(const struct layer_context *context, const struct dispatch *d, void *to)
{
    size_t bytes = dispatch_probes(context) * format_storage_bytes(context->ops->storage);
    if (bytes == 0) return;
    if (stands_for_all(context, d) && context->ep->probes) memcpy(to, context->ep->probes, bytes);
    else memset(to, 0, bytes);
}

struct ledger *dispatch_ledger(const struct layer_context *context, const struct dispatch *d)
{
    return context->ep->arrived_ledger && stands_for_all(context, d) ? context->ep->ledger : NULL;
}

void dispatch_take_probes(const struct layer_context *context, const void *from, size_t stride, int count)
{
    size_t probes = dispatch_probes(context), width = format_storage_bytes(context->ops->storage);
    char *to = context->ep->arrived_probes;
    for (int i = 0; i < count && probes > 0; i++) {
        const char *block = (const char *)from + (size_t)i * stride * width;
        if (i == 0) memcpy(to, block, probes * width);
        else context->ops->vector_add(to, to, block, probes);
    }
}

void dispatch_weigh_backward(const struct layer_context *context, const struct dispatch_rows *rows, struct tensor out, struct tensor d_out,
                             struct tensor d_weight, struct tensor dy)
{
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor dots = tensor_1d(rows_alloc(context, rows->rows, 1, context->scratch).data, dy.storage, rows->rows);
    context->ops->gather_rows(d_out, dy, rows->back_token);
    context->ops->row_dots(dots, out, d_out);
    for (int64_t i = 0; i < rows->rows; i++)
        router_set(d_weight, rows->back_slot[i], router_get(d_weight, rows->back_slot[i]) + router_get(dots, i));
    context->ops->scale_rows(d_out, d_out, rows->weight);
    tensor_round(d_out, precision_activation(context->precision));
    arena_release(context->scratch, mark);
}

/* ---- this rank's rows ---- */

static struct group *copies_of(const struct layer_context *context)
{
    const struct expert_parallel *ep = context->ep;
    return ep && ep->copies && ep->copies->size > 1 && ep->dispatcher != DISPATCH_REPLICATED ? ep->copies : NULL;
}

static int64_t run_begins(int64_t tokens, const struct group *copies, int member)
{
    int64_t each = (tokens + copies->size - 1) / copies->size;
    return each * member < tokens ? each * member : tokens;
}

static void find_run(const struct layer_context *context, struct dispatch *d)
{
    struct group *copies = copies_of(context);
    d->tokens = layer_rows(context);
    if (!copies || !decision_site(context->plan, &site_ep_token_share, context->where, true, true)) return;
    d->copies = copies;
    d->first_token = run_begins(layer_rows(context), copies, copies->me);
    d->tokens = run_begins(layer_rows(context), copies, copies->me + 1) - d->first_token;
}

/* Those rows of the routing whose token is in this rank's run. */
static void find_rows(const struct layer_context *context, struct dispatch *d, const struct routing *routing, struct arena *arena)
{
    int experts = context->model->moe.experts, top_k = context->model->moe.top_k;
    struct dispatch_rows *own = &d->own;
    size_t room = (size_t)(routing->rows + 1);
    own->bounds = arena_zalloc(arena, (size_t)(experts + 1) * sizeof *own->bounds);
    own->from = arena_alloc(arena, room * sizeof *own->from);
    own->back_token = arena_alloc(arena, room * sizeof *own->back_token);
    own->back_slot = arena_alloc(arena, room * sizeof *own->back_slot);
    for (int e = 0; e < experts; e++) {
        for (int64_t i = routing->bounds[e]; i < routing->bounds[e + 1]; i++) {
            int64_t token = routing->slot[i] / top_k;
            if (token < d->first_token || token >= d->first_token + d->tokens) continue;
            own->from[own->rows] = routing->from[i];
            own->back_token[own->rows] = routing->back_token[i];
            own->back_slot[own->rows++] = routing->back_slot[i];
        }
        own->bounds[e + 1] = own->rows;
    }
    own->weight = tensor_1d(rows_alloc(context, own->rows, 1, arena).data, context->ops->storage, own->rows);
    struct tensor slots = tensor_2d(routing->weight.data, routing->weight.storage, tensor_count(routing->weight), 1);
    context->ops->gather_rows(tensor_2d(own->weight.data, slots.storage, own->rows, 1), slots, own->back_slot);
}

/* ---- what the block calls ---- */

static const struct dispatcher *dispatcher_of(const struct layer_context *context)
{
    static const struct dispatcher *const of[] = {[DISPATCH_ALL_TO_ALL] = &dispatcher_all_to_all, [DISPATCH_ALL_GATHER] = &dispatcher_all_gather,
                                                  [DISPATCH_REPLICATED] = &dispatcher_replicated};
    return context->ep && context->ep->group && context->ep->group->size > 1 ? of[context->ep->dispatcher] : &dispatcher_local;
}

void dispatch_forward(const struct layer_context *context, struct dispatch *d, const struct routing *routing, struct tensor normed, struct arena *arena)
{
    d->kind = dispatcher_of(context);
    d->first = d->kind == &dispatcher_local ? 0 : context->ep->first;
    d->experts = d->kind == &dispatcher_local ? context->model->moe.experts : context->ep->count;
    d->taken = d->first;
    find_run(context, d);
    find_rows(context, d, routing, arena);
    d->kind->plan(context, d, arena);
    d->kind->send(context, d, normed, arena);
    d->kind->sort(context, d, normed, layer_keeps(context, RECOMPUTE_MOE_PERMUTE, arena));
    d->out = rows_alloc(context, d->rows, context->model->dim, arena);
}

void dispatch_again(const struct layer_context *context, struct dispatch *d, struct tensor normed, struct arena *arena)
{
    d->kind->sort(context, d, normed, arena);
}

/* Each copy's run of rows [T, width], in place. */
static void gather_runs(const struct layer_context *context, const struct dispatch *d, const struct site *site, struct tensor t, enum format wire)
{
    struct group *copies = d->copies;
    if (!copies) return;
    struct arena_mark mark = arena_mark(context->scratch);
    size_t *counts = arena_alloc(context->scratch, (size_t)copies->size * sizeof *counts);
    for (int i = 0; i < copies->size; i++)
        counts[i] = (size_t)((run_begins(t.shape[0], copies, i + 1) - run_begins(t.shape[0], copies, i)) * t.shape[1]);
    struct comm how = dispatch_comm(context, site);
    all_gather(context->ep->communicator, copies, &how, dispatch_buffer(t, wire), dispatch_buffer(tensor_rows(t, d->first_token, d->tokens), wire), counts);
    arena_release(context->scratch, mark);
}

/* A sum of what is complete, over tp, or over expert-parallel ranks where there is no tp: in a healthy run never. */
static void sum_again(const struct layer_context *context, const struct dispatch *d, struct tensor routed)
{
    if (d->kind == &dispatcher_local || decision_site(context->plan, &site_ep_output_complete, context->where, true, true)) return;
    struct comm how = dispatch_comm(context, &site_ep_combine);
    tensor_round(routed, precision_activation(context->precision));
    all_reduce(context->ep->communicator, context->tp ? context->tp->group : context->ep->group, &how, dispatch_buffer(routed, precision_activation(context->precision)),
               REDUCE_SUM);
}

void dispatch_combine(const struct layer_context *context, struct dispatch *d, struct tensor routed, struct arena *arena)
{
    memset(routed.data, 0, (size_t)tensor_bytes(routed));
    d->kind->combine(context, d, routed, arena);
    if (d->copies) tensor_round(routed, precision_activation(context->precision));
    gather_runs(context, d, &site_ep_token_gather, routed, precision_activation(context->precision));
    sum_again(context, d, routed);
}

void dispatch_combine_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_out, struct tensor d_weight, struct tensor dy,
                               struct arena *arena)
{
    memset(d_weight.data, 0, (size_t)tensor_bytes(d_weight));
    d->kind->combine_backward(context, d, d_out, d_weight, dy, arena);
    gather_runs(context, d, &site_ep_gate_grad_gather, d_weight, context->ops->storage);
}

void dispatch_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_normed, struct tensor d_rows, struct arena *arena)
{
    if (!d->copies) {
        d->kind->backward(context, d, d_normed, d_rows, arena);
        return;
    }
    enum format wire = precision_activation(context->precision);
    struct arena_mark mark = arena_mark(context->scratch);
    struct tensor routed = rows_alloc(context, d_normed.shape[0], d_normed.shape[1], context->scratch);
    memset(routed.data, 0, (size_t)tensor_bytes(routed));
    d->kind->backward(context, d, routed, d_rows, arena);
    tensor_round(routed, wire);
    gather_runs(context, d, &site_ep_token_grad_gather, routed, wire);
    moe_note_gathered(context, routed);
    context->ops->vector_add(d_normed.data, d_normed.data, routed.data, (size_t)tensor_count(d_normed));
    arena_release(context->scratch, mark);
}
