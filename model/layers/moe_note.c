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

static void note_sums(const struct routing *routing, struct routing_fact *fact, struct arena *arena)
{
    size_t cells = (size_t)routing->cells;
    int64_t *load = arena_zalloc(arena, (size_t)fact->experts * sizeof *load);
    for (int e = 0; e < fact->experts; e++) load[e] = routing->bounds[e + 1] - routing->bounds[e];
    fact->load = load;
    fact->dropped = routing->dropped;
    fact->rows = routing->rows;
    fact->cells = routing->cells;
    fact->cell_first = copy(routing->cell_first, (cells + 1) * sizeof *fact->cell_first, arena);
    if (!routing->aux) return;
    fact->aux = copy(routing->aux, cells * sizeof *fact->aux, arena);
    fact->z = copy(routing->z, cells * sizeof *fact->z, arena);
    fact->aux_scale = arena_zalloc(arena, cells * sizeof *fact->aux_scale);
}

void moe_note_forward(const struct layer_context *context, const struct routing *routing, struct tensor normed, struct tensor rows_in,
                      struct tensor rows_out, struct tensor routed)
{
    if (!context->router || !context->router->fact) return;
    struct routing_fact *fact = context->router->fact;
    struct arena *arena = context->router->fact_arena;
    size_t experts = (size_t)context->model->moe.experts, pairs = (size_t)tensor_count(routing->picked), rows = (size_t)routing->rows;
    fact->tokens = normed.shape[0];
    fact->experts = (int)experts;
    fact->top_k = context->model->moe.top_k;
    note_sums(routing, fact, arena);
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
    fact->in = tags(rows_in, false, arena);
    fact->out = tags(rows_out, false, arena);
    fact->out_size = tags(rows_out, true, arena);
    fact->normed = tags(normed, false, arena);
    fact->routed = tags(routed, false, arena);
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

void moe_note_padding(const struct layer_context *context, struct tensor rows)
{
    if (!context->router || !context->router->fact) return;
    for (int64_t i = 0; i < rows.shape[0]; i++) {
        double size = tag_of(rows, i, true);
        context->router->fact->padding_rows++;
        context->router->fact->padding_dirty += !(size == 0);
    }
}
