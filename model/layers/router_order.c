/* router_order: the kept (token, expert) pairs in the order of experts, and the maps there and back.
 *
 * A counting sort, so that an expert's tokens stay in their order. Row i is pair slot[i] = token * top_k + choice; it is a
 * copy of token from[i], goes through the expert e with bounds[e] <= i < bounds[e + 1], and its result belongs to pair
 * back_slot[i]. In a healthy run from = token, bounds = first, back_slot = slot.
 *
 * Wrong maps: by the forward map instead of its inverse, the result for pair s is fetched from row slot[s]: so row r
 * goes to the pair s with slot[s] = r, inverse[r]. A token number taken as [position, sequence] instead of [sequence,
 * position] is right for one sequence only. */
#include "model/deviations.h"
#include "model/layers/router.h"

static bool has_row(const struct routing *routing, int64_t i)
{
    return !routing->kept || (routing->kept[i] && !routing->lost[i]);
}

static void sort_by_expert(struct routing *routing, int64_t pairs, int experts, int top_k, struct arena *arena)
{
    routing->first = arena_zalloc(arena, (size_t)(experts + 1) * sizeof *routing->first);
    routing->token = arena_alloc(arena, (size_t)pairs * sizeof *routing->token);
    routing->slot = arena_alloc(arena, (size_t)pairs * sizeof *routing->slot);
    int64_t *next = arena_zalloc(arena, (size_t)(experts + 1) * sizeof *next);
    for (int64_t i = 0; i < pairs; i++) routing->first[routing->chosen[i] + 1] += has_row(routing, i);
    for (int e = 0; e < experts; e++) next[e + 1] = routing->first[e + 1] += routing->first[e];
    routing->rows = routing->first[experts];
    for (int64_t i = 0; i < pairs; i++) {
        if (!has_row(routing, i)) continue;
        int64_t at = next[routing->chosen[i]]++;
        routing->token[at] = (int32_t)(i / top_k);
        routing->slot[at] = (int32_t)i;
    }
}

/* Where experts' rows begin in the product: one row late for all but the first where a sum that includes an expert's own
 * is taken for its start. */
static void find_bounds(const struct layer_context *context, struct routing *routing, int experts, struct arena *arena)
{
    int64_t late = memory_range_site(context->plan, &site_moe_expert_rows, context->where, routing->rows).from;
    routing->bounds = routing->first;
    if (late == 0) return;
    routing->bounds = arena_zalloc(arena, (size_t)(experts + 1) * sizeof *routing->bounds);
    for (int e = 1; e <= experts; e++) {
        int64_t at = routing->first[e] + (e < experts ? late : 0);
        routing->bounds[e] = at < routing->rows ? at : routing->rows;
    }
}

static void mistake_tokens(const struct layer_context *context, struct routing *routing, struct arena *arena)
{
    int64_t batch = context->batch, seq = context->seq;
    routing->from = arena_alloc(arena, (size_t)(routing->rows + 1) * sizeof *routing->from);
    for (int64_t i = 0; i < routing->rows; i++) routing->from[i] = (int32_t)(routing->token[i] % seq * batch + routing->token[i] / seq);
}

/* Rows without a counterpart in the other map stay where they belong. */
static void mistake_inverse(struct routing *routing, int top_k, struct arena *arena)
{
    routing->back_slot = arena_alloc(arena, (size_t)(routing->rows + 1) * sizeof *routing->back_slot);
    routing->back_token = arena_alloc(arena, (size_t)(routing->rows + 1) * sizeof *routing->back_token);
    for (int64_t i = 0; i < routing->rows; i++) routing->back_slot[i] = routing->slot[i];
    for (int64_t i = 0; i < routing->rows; i++) {
        if (routing->slot[i] < routing->rows) routing->back_slot[routing->slot[i]] = (int32_t)i;
    }
    for (int64_t i = 0; i < routing->rows; i++) routing->back_token[i] = routing->back_slot[i] / top_k;
}

void router_order(const struct layer_context *context, struct routing *routing, struct arena *arena)
{
    int experts = context->model->moe.experts, top_k = context->model->moe.top_k;
    sort_by_expert(routing, tensor_count(routing->picked), experts, top_k, arena);
    find_bounds(context, routing, experts, arena);
    routing->from = routing->token;
    routing->back_token = routing->token;
    routing->back_slot = routing->slot;
    if (!decision_site(context->plan, &site_moe_token_index, context->where, true, true)) mistake_tokens(context, routing, arena);
    if (!decision_site(context->plan, &site_moe_unpermute, context->where, true, true)) mistake_inverse(routing, top_k, arena);
}
