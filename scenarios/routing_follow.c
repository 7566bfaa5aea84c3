/* routing_follow: see routing_follow.h. */
#include "scenarios/routing_follow.h"

#include <stdlib.h>
#include <string.h>

#include "scenarios/facts.h"
#include "scenarios/routing_due.h"

static bool has(const int32_t *chosen, int count, int32_t expert)
{
    for (int i = 0; i < count; i++) {
        if (chosen[i] == expert) return true;
    }
    return false;
}

static bool is_same_set(const int32_t *a, const int32_t *b, int count)
{
    for (int i = 0; i < count; i++) {
        if (!has(a, count, b[i])) return false;
    }
    return true;
}

/* Do the scores follow from the logits? */
static bool scores_follow(const struct record *record, const struct routing_fact *fact, int64_t token)
{
    const struct moe_config *moe = &record->config.model.moe;
    double limit = moe->scores_bf16 ? 0x1p-7 : routing_roundoff(record);
    for (int e = 0; e < fact->experts; e++) {
        int64_t at = token * fact->experts + e;
        if (!routing_agree(routing_score(moe, fact->logits + token * fact->experts, e), fact->score[at], limit)) return false;
    }
    return true;
}

struct work { double *keys; int32_t *top; };

/* Capacity is a cell's: where its tokens lie on several ranks, no fact alone says who has room (check routing puts them together). */
static bool room_is_here(const struct record *record)
{
    return !layout_slices_sequences(&record->config.layout) && layout_cp(&record->config.layout) == 1;
}

/* Are those kept whom the declared rule keeps? */
static bool room_follows(const struct moe_config *moe, const struct routing_fact *fact)
{
    size_t pairs = (size_t)(fact->tokens * fact->top_k);
    bool *due = memory_zalloc(pairs + 1), good = moe->capacity_factor > 0;
    if (good) routing_kept(moe, fact, moe->drop, due);
    for (size_t i = 0; i < pairs && good; i++) good = due[i] == (bool)fact->kept[i];
    free(due);
    return good;
}

static void take_fact(const struct record *record, const struct rank_record *rank, const struct routing_fact *fact, const struct work *work, int32_t *chosen, int32_t *own, uint8_t *kept)
{
    bool room = room_is_here(record) && room_follows(&record->config.model.moe, fact);
    const struct moe_config *moe = &record->config.model.moe;
    size_t bytes = (size_t)moe->top_k * sizeof *chosen;
    for (int64_t t = 0; t < fact->tokens; t++) {
        int64_t at = routing_token(record, rank, fact, t) * moe->top_k;
        routing_keys(moe, fact, t, work->keys);
        routing_top(work->keys, moe->experts, moe->top_k, work->top);
        if (!is_same_set(work->top, fact->chosen + t * moe->top_k, moe->top_k) || !scores_follow(record, fact, t)) continue;
        memcpy(chosen + at, fact->chosen + t * moe->top_k, bytes);
        if (room) memcpy(kept + at, fact->kept + t * moe->top_k, (size_t)moe->top_k);
        routing_top(fact->logits + t * moe->experts, moe->experts, moe->top_k, work->top);
        memcpy(own + at, work->top, bytes);
    }
}

bool routing_keeps_rules(const struct record *record)
{
    const struct moe_config *moe = &record->config.model.moe;
    struct work work = {memory_alloc((size_t)(moe->experts + 1) * sizeof(double)), memory_alloc((size_t)(moe->top_k + 1) * sizeof(int32_t))};
    bool good = true;
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].routings.count && good; i++) {
            const struct routing_fact *fact = &record->rank[r].routings.items[i];
            good = !fact->whole || moe->capacity_factor <= 0 || !room_is_here(record) || room_follows(moe, fact);
            for (int64_t t = 0; t < fact->tokens && fact->whole && good; t++) {
                routing_keys(moe, fact, t, work.keys);
                routing_top(work.keys, moe->experts, moe->top_k, work.top);
                good = is_same_set(work.top, fact->chosen + t * moe->top_k, moe->top_k) && scores_follow(record, fact, t);
            }
        }
    }
    free(work.top);
    free(work.keys);
    return good;
}

static int32_t *nothing_known(const struct run_config *config, struct arena *arena)
{
    size_t count = (size_t)config->train.global_batch * (size_t)config->model.seq * (size_t)config->model.moe.top_k;
    int32_t *ret = arena_alloc(arena, count * sizeof *ret);
    memset(ret, 0xff, count * sizeof *ret);
    return ret;
}

struct routing_choices *routing_choices_of(const struct record *record, struct arena *arena)
{
    const struct run_config *config = &record->config;
    int units = unit_count(&config->model);
    if (config->model.moe.experts == 0) return NULL;
    size_t cells = (size_t)config->train.steps * (size_t)units;
    int32_t **chosen = arena_zalloc(arena, cells * sizeof *chosen), **own = arena_zalloc(arena, cells * sizeof *own);
    uint8_t **kept = arena_zalloc(arena, cells * sizeof *kept);
    size_t pairs = (size_t)config->train.global_batch * (size_t)config->model.seq * (size_t)config->model.moe.top_k;
    struct work work = {arena_alloc(arena, (size_t)config->model.moe.experts * sizeof(double)), arena_alloc(arena, (size_t)config->model.moe.top_k * sizeof(int32_t))};
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].routings.count; i++) {
            const struct routing_fact *fact = &record->rank[r].routings.items[i];
            size_t at = (size_t)fact->step * (size_t)units + (size_t)fact->unit;
            if (!fact->whole || !facts_sample_is_due(record, fact->step, record->rank[r].data_rank, fact->microbatch)) continue;
            if (!chosen[at]) chosen[at] = nothing_known(config, arena);
            if (!own[at]) own[at] = nothing_known(config, arena);
            if (!kept[at]) kept[at] = memset(arena_alloc(arena, pairs), 2, pairs);
            take_fact(record, &record->rank[r], fact, &work, chosen[at], own[at], kept[at]);
        }
    }
    struct routing_choices *ret = arena_alloc(arena, sizeof *ret);
    *ret = (struct routing_choices){units, ROUTING_NEAR_TIE * precision_roundoff(&config->precision), (const int32_t *const *)chosen, (const int32_t *const *)own,
                                    (const uint8_t *const *)kept};
    return ret;
}

static const struct routing_fact *fact_at(const struct rank_record *rank, int step, int unit)
{
    for (int i = 0; i < rank->routings.count; i++) {
        const struct routing_fact *fact = &rank->routings.items[i];
        if (fact->step == step && fact->unit == unit && fact->whole) return fact;
    }
    return NULL;
}

/* Of one set of experts, in any order. */
static bool has_same_room(const struct routing_fact *a, int64_t token, const struct routing_fact *b, int64_t there)
{
    int k = a->top_k;
    for (int i = 0; i < k; i++) {
        for (int n = 0; n < k; n++) {
            bool pair = a->chosen[token * k + i] == b->chosen[there * k + n];
            if (pair && a->kept[token * k + i] != b->kept[there * k + n]) return false;
        }
    }
    return true;
}

static void add_fact(const struct record *parallel, const struct rank_record *rank, const struct routing_fact *fact, const struct routing_fact *other,
                     struct routing_difference *sum)
{
    int k = fact->top_k;
    if (!other || !facts_sample_is_due(parallel, fact->step, rank->data_rank, fact->microbatch)) return;
    for (int64_t t = 0; t < fact->tokens; t++) {
        int64_t there = routing_token(parallel, rank, fact, t);
        if (there >= other->tokens) continue;
        sum->tokens++;
        sum->followed += other->followed && other->followed[there];
        if (is_same_set(fact->chosen + t * k, other->chosen + there * k, k) && has_same_room(fact, t, other, there)) continue;
        if (sum->differ++ == 0 || fact->step < sum->step) {
            sum->step = fact->step;
            sum->unit = fact->unit;
        }
    }
}

struct routing_difference routing_difference_of(const struct record *parallel, const struct record *standalone)
{
    struct routing_difference sum = {.step = -1, .unit = -1};
    for (int r = 0; r < parallel->ranks; r++) {
        const struct rank_record *rank = &parallel->rank[r];
        bool has_own = layout_slices_sequences(&parallel->config.layout) || facts_is_first_reader(parallel, rank); /* else the same tokens as another */
        for (int i = 0; i < rank->routings.count && has_own; i++) {
            const struct routing_fact *fact = &rank->routings.items[i];
            if (fact->whole && fact->step < standalone->config.train.steps)
                add_fact(parallel, rank, fact, fact_at(&standalone->rank[0], fact->step, fact->unit), &sum);
        }
    }
    return sum;
}
