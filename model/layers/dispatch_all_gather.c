/* dispatch, all_gather: every rank of an expert-parallel group gets the tokens of all, and which experts they are for.
 *
 *   plan       how many tokens and rows each rank has (ep.counts), then of each row: expert, token, slot, weight (ep.map)
 *   send       all-gather of tokens (ep.dispatch)
 *   backward   all-gather of the gradient of the results' sum (ep.combine_grad), with each sender's probes and ledger
 * The sums are dispatch_partial.c's. A row whose entry in the map says nothing (it got lost) belongs to no expert here.
 * Source: Megatron-LM core/transformer/moe/token_dispatcher.py (MoEAllGatherTokenDispatcher). */
#include <string.h>

#include "model/layers/dispatch_partial.h"
#include "model/layers/moe_network.h"
#include "model/layers/moe_note.h"
#include "model/precision.h"

enum { EXPERT, FROM, SLOT, WEIGHT, ENTRIES }; /* of a row in the map, in fp64; slot: where its result goes; both in the sender's run */
enum { TOKENS, ROWS, SIZES };

/* Every rank's tokens and rows. */
static void gather_counts(const struct layer_context *context, struct dispatch *d, size_t *tokens, size_t *rows)
{
    struct group *group = context->ep->group;
    int64_t most_tokens = 16 * (layer_rows(context) > 256 ? layer_rows(context) : 256);
    double own[SIZES] = {[TOKENS] = (double)d->tokens, [ROWS] = (double)d->own.rows};
    double *all = arena_alloc(context->scratch, (size_t)group->size * sizeof own);
    struct comm how = dispatch_comm(context, &site_ep_counts);
    all_gather(context->ep->communicator, group, &how, dispatch_buffer(tensor_2d(all, FORMAT_FP64, group->size, SIZES), FORMAT_FP64),
               dispatch_buffer(tensor_1d(own, FORMAT_FP64, SIZES), FORMAT_FP64), NULL);
    for (int i = 0; i < group->size; i++) {
        tokens[i] = i == group->me ? (size_t)d->tokens : (size_t)dispatch_count(all[i * SIZES + TOKENS], most_tokens);
        rows[i] = i == group->me ? (size_t)d->own.rows : (size_t)dispatch_count(all[i * SIZES + ROWS], most_tokens * context->model->moe.top_k);
    }
}

/* [all rows, ENTRIES] */
static const double *gather_map(const struct layer_context *context, struct dispatch *d, const size_t *rows, size_t all_rows)
{
    int ranks = context->ep->group->size;
    double *own = arena_alloc(context->scratch, (size_t)(d->own.rows + 1) * ENTRIES * sizeof *own), *all = arena_alloc(context->scratch, (all_rows + 1) * ENTRIES * sizeof *all);
    size_t *counts = arena_alloc(context->scratch, (size_t)ranks * sizeof *counts);
    for (int i = 0; i < ranks; i++) counts[i] = rows[i] * ENTRIES;
    for (int e = 0; e < context->model->moe.experts; e++) {
        for (int64_t i = d->own.bounds[e]; i < d->own.bounds[e + 1]; i++) {
            double *entry = own + i * ENTRIES;
            entry[EXPERT] = e;
            entry[FROM] = (double)(d->own.from[i] - d->first_token);
            entry[SLOT] = (double)(d->own.back_slot[i] - d->first_token * context->model->moe.top_k);
            entry[WEIGHT] = router_get(d->own.weight, i);
        }
    }
    struct comm how = dispatch_comm(context, &site_ep_map);
    all_gather(context->ep->communicator, context->ep->group, &how, dispatch_buffer(tensor_2d(all, FORMAT_FP64, (int64_t)all_rows, ENTRIES), FORMAT_FP64),
               dispatch_buffer(tensor_2d(own, FORMAT_FP64, d->own.rows, ENTRIES), FORMAT_FP64), counts);
    return all;
}

/* Those of one expert from one rank, whose tokens begin at `first`. */
static void take_rows(const struct layer_context *context, struct partial *p, const double *map, size_t rows, int64_t first, int64_t tokens, int expert)
{
    int top_k = context->model->moe.top_k;
    for (size_t i = 0; i < rows; i++) {
        const double *entry = map + i * ENTRIES;
        if (entry[EXPERT] != expert || !(entry[FROM] >= 0 && entry[FROM] < (double)tokens && entry[SLOT] >= 0 && entry[SLOT] < (double)(tokens * top_k))) continue;
        int64_t at = p->rows.rows++;
        p->rows.from[at] = (int32_t)(first + (int64_t)entry[FROM]);
        p->rows.back_slot[at] = (int32_t)(first * top_k + (int64_t)entry[SLOT]);
        p->rows.back_token[at] = p->rows.back_slot[at] / top_k;
        router_set(p->rows.weight, at, entry[WEIGHT]);
    }
}

static void plan(const struct layer_context *context, struct dispatch *d, struct arena *arena)
{
    int ranks = context->ep->group->size;
    struct partial *p = d->state = arena_zalloc(arena, sizeof *p);
    partial_place(context, d);
    d->arrived = arena_zalloc(arena, (size_t)(ranks * d->experts) * sizeof *d->arrived);
    p->of_rank = arena_zalloc(arena, (size_t)ranks * sizeof *p->of_rank);
    struct arena_mark mark = arena_mark(context->scratch);
    size_t *rows = arena_zalloc(context->scratch, (size_t)ranks * sizeof *rows), all_rows = 0;
    gather_counts(context, d, p->of_rank, rows);
    for (int i = 0; i < ranks; i++) {
        all_rows += rows[i];
        p->tokens += (int64_t)p->of_rank[i];
    }
    const double *map = gather_map(context, d, rows, all_rows);
    p->rows.bounds = arena_zalloc(arena, (size_t)(d->experts + 1) * sizeof *p->rows.bounds);
    p->rows.from = arena_alloc(arena, (all_rows + 1) * sizeof *p->rows.from);
    p->rows.back_token = arena_alloc(arena, (all_rows + 1) * sizeof *p->rows.back_token);
    p->rows.back_slot = arena_alloc(arena, (all_rows + 1) * sizeof *p->rows.back_slot);
    p->rows.weight = tensor_1d(rows_alloc(context, (int64_t)all_rows, 1, arena).data, context->ops->storage, (int64_t)all_rows);
    for (int e = 0; e < d->experts; e++) {
        const double *at = map;
        int64_t first = 0;
        for (int i = 0; i < ranks; i++) {
            int64_t before = p->rows.rows;
            take_rows(context, p, at, rows[i], first, (int64_t)p->of_rank[i], d->taken + e);
            d->arrived[i * d->experts + e] = p->rows.rows - before;
            at += rows[i] * ENTRIES;
            first += (int64_t)p->of_rank[i];
        }
        p->rows.bounds[e + 1] = p->rows.rows;
    }
    p->rows.weight = tensor_rows(p->rows.weight, 0, p->rows.rows);
    d->rows = p->rows.rows;
    d->bounds = p->rows.bounds;
    arena_release(context->scratch, mark);
}

/* Own rows [tokens, C] to all; with `probes` elements behind each rank's. */
static struct tensor gather_tokens(const struct layer_context *context, struct dispatch *d, const struct site *site, struct tensor own, size_t probes,
                                   struct arena *arena)
{
    const struct expert_parallel *ep = context->ep;
    const struct partial *p = d->state;
    int ranks = ep->group->size;
    size_t width = format_storage_bytes(own.storage), columns = (size_t)own.shape[1], all = (size_t)p->tokens * columns + (size_t)ranks * probes;
    enum format wire = precision_activation(context->precision);
    size_t *counts = arena_alloc(context->scratch, (size_t)ranks * sizeof *counts), mine = (size_t)tensor_count(own);
    for (int i = 0; i < ranks; i++) counts[i] = p->of_rank[i] * columns + probes;
    char *out = arena_alloc(arena, all * width + 1), *in = arena_alloc(context->scratch, (mine + probes) * width + 1);
    if (mine > 0) memcpy(in, own.data, mine * width);
    if (probes > 0) dispatch_put_probes(context, d, in + mine * width);
    struct comm how = dispatch_comm(context, site);
    how.uncounted = probes;
    bool rides = site == &site_ep_combine_grad;
    all_gather(ep->communicator, ep->group, &how, (struct buffer){out, all, own.storage, wire, rides ? ep->arrived_ledger : NULL},
               (struct buffer){in, mine + probes, own.storage, wire, rides ? dispatch_ledger(context, d) : NULL}, counts);
    char *to = out, *from = out, *blocks = arena_alloc(context->scratch, (size_t)ranks * probes * width + 1);
    for (int i = 0; i < ranks && probes > 0; i++) {
        size_t bytes = p->of_rank[i] * columns * width;
        if (to != from && bytes > 0) memmove(to, from, bytes);
        memcpy(blocks + (size_t)i * probes * width, from + bytes, probes * width);
        to += bytes;
        from += bytes + probes * width;
    }
    if (probes > 0) dispatch_take_probes(context, blocks, probes, ranks);
    return tensor_2d(out, own.storage, p->tokens, own.shape[1]);
}

static void send(const struct layer_context *context, struct dispatch *d, struct tensor normed, struct arena *arena)
{
    struct partial *p = d->state;
    struct arena_mark mark = arena_mark(context->scratch);
    p->normed = gather_tokens(context, d, &site_ep_dispatch, tensor_rows(normed, d->first_token, d->tokens), 0, arena);
    arena_release(context->scratch, mark);
}

static void combine_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_out, struct tensor d_weight, struct tensor dy,
                             struct arena *arena)
{
    (void)arena;
    struct arena_mark mark = arena_mark(context->scratch);
    moe_note_rows(context, DISPATCH_GRAD_SENT, tensor_rows(dy, d->first_token, d->tokens));
    struct tensor all = gather_tokens(context, d, &site_ep_combine_grad, tensor_rows(dy, d->first_token, d->tokens), dispatch_probes(context), context->scratch);
    partial_combine_backward(context, d, d_out, d_weight, all);
    arena_release(context->scratch, mark);
}

const struct dispatcher dispatcher_all_gather = {
    .name = "all_gather", .plan = plan, .send = send, .sort = partial_sort, .combine = partial_combine, .combine_backward = combine_backward,
    .backward = partial_backward,
};
