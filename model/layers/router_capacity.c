/* router_capacity: which of the chosen (token, expert) pairs find room at their expert.
 *
 *   capacity = ceil(T k / E * capacity_factor), at most T; T: the tokens of a cell (model/routing.h), padding included
 * (those on other ranks too that have slices of the same sequences: router_slices.c).
 * In each cell an expert keeps at most so many of its pairs: those with the largest weight (probs; of equal ones the
 * earlier token), or the first tokens (position). By weight is by what the weights are at that point: normalized, or
 * the scores where they are normalized afterwards.
 *
 * Numbers that were given before the drop (moe.locations) run over all of an expert's pairs: one of `capacity` or more
 * is outside of the expert's room, and the pair gets no row.
 *
 * Source: Megatron-LM core/transformer/moe/moe_utils.py (topk_softmax_with_capacity), DeepSpeed moe/sharded_moe.py. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/deviations.h"
#include "model/layers/router.h"

struct pair { double by; int64_t at; int location, choice; };

static int by_weight(const void *left, const void *right)
{
    const struct pair *a = left, *b = right;
    if (isnan(a->by) != isnan(b->by)) return isnan(a->by) ? 1 : -1;
    if (!isnan(a->by) && a->by != b->by) return a->by > b->by ? -1 : 1;
    return (a->at > b->at) - (a->at < b->at);
}

/* All first choices before all second ones (a mistake). */
static int by_choice(const void *left, const void *right)
{
    const struct pair *a = left, *b = right;
    return a->choice != b->choice ? (a->choice > b->choice) - (a->choice < b->choice) : (a->at > b->at) - (a->at < b->at);
}

static int64_t capacity_of(const struct layer_context *context, int64_t tokens)
{
    const struct moe_config *moe = &context->model->moe;
    double top_k = factor_site(context->plan, &site_moe_capacity_top_k, context->where, moe->top_k, router_numbers(context));
    double room = ceil((double)tokens * top_k / moe->experts * moe->capacity_factor);
    return room < (double)tokens ? (int64_t)room : tokens;
}

/* All pairs that share their experts' room, in the order of sequences. */
struct pairs { int64_t count; double *by; int32_t *chosen; bool *kept, *lost; };

static struct pairs all_pairs(const struct layer_context *context, const struct routing *routing, struct tensor by)
{
    int64_t own = tensor_count(by);
    struct pairs all = {.count = router_token_among_all(context, layer_rows(context)) * context->model->moe.top_k};
    all.by = arena_alloc(context->scratch, (size_t)all.count * sizeof *all.by);
    all.chosen = arena_alloc(context->scratch, (size_t)all.count * sizeof *all.chosen);
    all.kept = arena_zalloc(context->scratch, (size_t)all.count * sizeof *all.kept);
    all.lost = arena_zalloc(context->scratch, (size_t)all.count * sizeof *all.lost);
    for (int64_t i = 0; i < own; i++) all.by[i] = router_get(by, i);
    memcpy(all.chosen, routing->chosen, (size_t)own * sizeof *all.chosen);
    if (context->tokens) router_gather_pairs(context, all.by, all.chosen, own);
    return all;
}

/* What an expert's pairs are ranked by: their weights, or where they stand. */
struct ranking { bool probs, tokens_first; };

static void drop_in_cell(const struct layer_context *context, const struct pairs *all, int64_t first, int64_t end, struct ranking by, bool after, struct pair *own)
{
    const struct moe_config *moe = &context->model->moe;
    int64_t from = first * moe->top_k, to = end * moe->top_k, capacity = capacity_of(context, end - first);
    for (int32_t e = 0; e < moe->experts; e++) {
        int count = 0;
        for (int64_t i = from; i < to; i++) {
            if (all->chosen[i] != e) continue;
            own[count] = (struct pair){all->by[i], i, count, (int)(i % moe->top_k)};
            count++;
        }
        if (by.probs && count > 0) qsort(own, (size_t)count, sizeof *own, by_weight);
        else if (!by.tokens_first && count > 0) qsort(own, (size_t)count, sizeof *own, by_choice);
        for (int i = 0; i < count; i++) {
            all->kept[own[i].at] = i < capacity;
            all->lost[own[i].at] = i < capacity && !after && own[i].location >= capacity;
        }
    }
}

void router_drop(const struct layer_context *context, struct routing *routing, struct tensor by, struct arena *arena)
{
    const struct moe_config *moe = &context->model->moe;
    int64_t pairs = tensor_count(by);
    if (moe->capacity_factor <= 0) return;
    struct arena_mark mark = arena_mark(context->scratch);
    struct ranking ranking = {.probs = moe->drop == MOE_DROP_PROBS && decision_site(context->plan, &site_moe_drop_policy, context->where, true, true)};
    ranking.tokens_first = ranking.probs || decision_site(context->plan, &site_moe_slot_order, context->where, true, true);
    bool after = decision_site(context->plan, &site_moe_locations, context->where, true, true);
    routing->kept = arena_alloc(arena, (size_t)pairs * sizeof *routing->kept);
    routing->lost = arena_alloc(arena, (size_t)pairs * sizeof *routing->lost);
    struct pairs all = all_pairs(context, routing, by);
    struct pair *own = arena_alloc(context->scratch, (size_t)all.count * sizeof *own);
    for (int c = 0; c < routing->cells; c++)
        drop_in_cell(context, &all, router_token_among_all(context, routing->cell_first[c]), router_token_among_all(context, routing->cell_first[c + 1]), ranking, after, own);
    for (int64_t i = 0; i < pairs; i++) {
        int64_t at = router_pair_among_all(context, context->tokens ? context->tokens->group->me : 0, i);
        routing->kept[i] = all.kept[at];
        routing->lost[i] = all.lost[at];
        routing->dropped += !all.kept[at];
    }
    router_follow_room(context, routing, by);
    arena_release(context->scratch, mark);
}
