/* moe_note: what a layer's routing really was, noted for the record (model/routing.h): after every site of it.
 *
 * A row's tag is its inner product with one fixed vector of numbers between 1 and 2, in fp64, ascending. */
#include "model/layers/moe_note.h"

#include <math.h>
#include <string.h>

#include "sim/hash.h"

static double tag_of(struct tensor t, int64_t row, bool magnitudes)
{
    int64_t columns = t.shape[1];
    double sum = 0;
    for (int64_t c = 0; c < columns; c++) {
        double value = router_get(t, row * columns + c);
        sum += (magnitudes ? fabs(value) : value) * (1 + (double)(hash_mix((uint64_t)c + 1) >> 40) * 0x1p-24);
    }
    return sum;
}

static const double *tags(struct tensor t, bool magnitudes, struct arena *arena)
{
    int64_t rows = t.shape[0];
    double *ret = arena_alloc(arena, (size_t)(rows + 1) * sizeof *ret);
    for (int64_t i = 0; i < rows; i++) ret[i] = tag_of(t, i, magnitudes);
    return ret;
}

static const double *reals(struct tensor t, struct arena *arena)
{
    int64_t count = tensor_count(t);
    double *ret = arena_alloc(arena, (size_t)(count + 1) * sizeof *ret);
    for (int64_t i = 0; i < count; i++) ret[i] = router_get(t, i);
    return ret;
}

static const void *copy(const void *from, size_t bytes, struct arena *arena)
{
    void *to = arena_alloc(arena, bytes + 1);
    if (bytes) memcpy(to, from, bytes);
    return to;
}

static const uint8_t *kept_of(const struct routing *routing, size_t pairs, struct arena *arena)
{
    uint8_t *kept = arena_alloc(arena, pairs + 1);
    for (size_t i = 0; i < pairs; i++) kept[i] = !routing->kept || routing->kept[i];
    return kept;
}

static void note_sums(const struct routing *routing, const struct dispatch *d, struct routing_fact *fact, struct arena *arena)
{
    size_t cells = (size_t)routing->cells;
    int64_t *load = arena_zalloc(arena, (size_t)fact->experts * sizeof *load), *computed = arena_zalloc(arena, (size_t)fact->experts * sizeof *computed);
    for (int e = 0; e < fact->experts; e++) load[e] = routing->bounds[e + 1] - routing->bounds[e];
    for (int e = 0; e < d->experts; e++) computed[d->first + e] = d->bounds[e + 1] - d->bounds[e];
    fact->load = load;
    fact->computed = computed;
    fact->dropped = routing->dropped;
    fact->rows = routing->rows;
    fact->cells = routing->cells;
    fact->cell_first = copy(routing->cell_first, (cells + 1) * sizeof *fact->cell_first, arena);
    if (!routing->aux) return;
    fact->aux = copy(routing->aux, cells * sizeof *fact->aux, arena);
    fact->z = copy(routing->z, cells * sizeof *fact->z, arena);
    fact->aux_scale = arena_zalloc(arena, cells * sizeof *fact->aux_scale);
}

static void note_dispatch(const struct layer_context *context, const struct dispatch *d, struct routing_fact *fact, struct arena *arena)
{
    const struct expert_parallel *ep = context->ep;
    struct dispatch_fact *own = &fact->dispatch;
    int64_t *sent = arena_zalloc(arena, (size_t)fact->experts * sizeof *sent);
    for (int e = 0; e < fact->experts; e++) sent[e] = d->own.bounds[e + 1] - d->own.bounds[e];
    own->members = ep->group->size;
    own->me = ep->group->me;
    own->ranks = ep->group->ranks;
    own->copies = d->copies ? d->copies->size : 0;
    own->copy_ranks = d->copies ? d->copies->ranks : NULL;
    own->one_by_one = d->own_out.data != NULL;
    own->everywhere = ep->dispatcher == DISPATCH_REPLICATED;
    own->first = d->first;
    own->experts = d->experts;
    own->first_token = d->first_token;
    own->tokens = d->tokens;
    own->sent = sent;
    own->arrived = copy(d->arrived, (size_t)(own->members * d->experts) * sizeof *own->arrived, arena);
}

static struct routing_fact *whole_fact(const struct layer_context *context)
{
    struct routing_fact *fact = context->router ? context->router->fact : NULL;
    return fact && fact->whole && context->ep ? fact : NULL;
}

void moe_note_rows(const struct layer_context *context, enum dispatch_stage stage, struct tensor rows)
{
    struct routing_fact *fact = whole_fact(context);
    if (!fact) return;
    fact->dispatch.rows[stage] = rows.shape[0];
    fact->dispatch.tags[stage] = tags(rows, false, context->router->fact_arena);
    if (stage == DISPATCH_GAVE || stage == DISPATCH_GRAD_SENT || stage == DISPATCH_GRAD_GAVE)
        fact->dispatch.sizes[stage] = tags(rows, true, context->router->fact_arena);
}

void moe_note_gathered(const struct layer_context *context, struct tensor rows)
{
    struct routing_fact *fact = whole_fact(context);
    if (fact) fact->dispatch.gathered = tags(rows, false, context->router->fact_arena);
}

void moe_note_returned(const struct layer_context *context, const int64_t *counts)
{
    struct routing_fact *fact = whole_fact(context);
    if (fact) fact->dispatch.returned = copy(counts, (size_t)context->ep->group->size * sizeof *counts, context->router->fact_arena);
}

void moe_note_row_weights(const struct layer_context *context, struct tensor weights)
{
    struct routing_fact *fact = whole_fact(context);
    if (fact) fact->dispatch.weight = reals(weights, context->router->fact_arena);
}

void moe_note_row_gates(const struct layer_context *context, struct tensor gates)
{
    struct routing_fact *fact = whole_fact(context);
    if (fact) fact->dispatch.gate = reals(gates, context->router->fact_arena);
}

/* Of those of the routing's rows that are among `own`; 0 of the others. */
static const double *row_tags(const struct routing_fact *fact, const struct routing *routing, struct tensor own, bool magnitudes, struct arena *arena)
{
    double *ret = arena_zalloc(arena, (size_t)(routing->rows + 1) * sizeof *ret);
    int64_t at = 0;
    for (int e = 0; e < fact->experts; e++) {
        for (int64_t i = routing->bounds[e]; i < routing->bounds[e + 1]; i++) {
            if (routing_row_is_seen(fact, routing->slot[i])) ret[i] = tag_of(own, at++, magnitudes);
        }
    }
    return ret;
}

void moe_note_forward(const struct layer_context *context, const struct routing *routing, const struct dispatch *d, struct tensor normed, struct tensor routed)
{
    if (!context->router || !context->router->fact) return;
    struct routing_fact *fact = context->router->fact;
    struct arena *arena = context->router->fact_arena;
    size_t experts = (size_t)context->model->moe.experts, pairs = (size_t)tensor_count(routing->picked), rows = (size_t)routing->rows;
    fact->tokens = normed.shape[0];
    fact->experts = (int)experts;
    fact->top_k = context->model->moe.top_k;
    fact->seen_first = d->first_token;
    fact->seen_tokens = d->own_out.data ? d->tokens : 0;
    note_sums(routing, d, fact, arena);
    if (d->arrived) note_dispatch(context, d, fact, arena);
    if (!fact->whole) return;
    if (context->router->bias) fact->bias = copy(context->router->bias, experts * sizeof *fact->bias, arena);
    fact->logits = reals(routing->logits, arena);
    fact->score = reals(routing->score, arena);
    fact->weight = reals(routing->weight, arena);
    fact->chosen = copy(routing->chosen, pairs * sizeof *fact->chosen, arena);
    fact->kept = kept_of(routing, pairs, arena);
    if (routing->followed) fact->followed = copy(routing->followed, (size_t)fact->tokens, arena);
    fact->first = copy(routing->first, (experts + 1) * sizeof *fact->first, arena);
    fact->bounds = copy(routing->bounds, (experts + 1) * sizeof *fact->bounds, arena);
    fact->slot = copy(routing->slot, rows * sizeof *fact->slot, arena);
    fact->from = copy(routing->from, rows * sizeof *fact->from, arena);
    fact->back = copy(routing->back_slot, rows * sizeof *fact->back, arena);
    fact->in = row_tags(fact, routing, d->own_in, false, arena);
    fact->out = row_tags(fact, routing, d->own_out, false, arena);
    fact->out_size = row_tags(fact, routing, d->own_out, true, arena);
    fact->normed = tags(normed, false, arena);
    fact->routed = tags(routed, false, arena);
    fact->routed_size = tags(routed, true, arena);
}

void moe_note_gate(const struct layer_context *context, struct tensor d_weight, bool due)
{
    if (!context->router || !context->router->fact || !context->router->fact->whole) return;
    struct routing_fact *fact = context->router->fact;
    const double *values = reals(d_weight, context->router->fact_arena);
    if (due) fact->gate_due = values;
    else fact->gate = values;
    fact->backward = true;
}

void moe_note_shared(const struct layer_context *context, struct tensor rows, bool added)
{
    if (!context->router || !context->router->fact || !context->router->fact->whole) return;
    const double *values = tags(rows, false, context->router->fact_arena);
    if (added) context->router->fact->added = values;
    else context->router->fact->shared = values;
    if (!added) context->router->fact->shared_size = tags(rows, true, context->router->fact_arena);
}

void moe_note_padding(const struct layer_context *context, struct tensor rows)
{
    if (!context->router || !context->router->fact) return;
    for (int64_t i = 0; i < rows.shape[0]; i++) {
        double size = tag_of(rows, i, true);
        context->router->fact->padding_rows++;
        context->router->fact->padding_dirty += !(size == 0);
    }
}
