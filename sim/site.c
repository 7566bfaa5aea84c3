/* site: which armed deviation is due at a place. */
#include "sim/site.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "sim/arena.h"
#include "sim/assertion.h"

const char *const site_kind_names[SITE_KIND_COUNT] = {"communication", "factor", "decision", "tensor", "memory"};

struct site_plan *site_plan_new(int ranks)
{
    ASSERT(ranks >= 1);
    struct site_plan *plan = memory_zalloc(sizeof *plan);
    plan->ranks = ranks;
    return plan;
}

void site_plan_free(struct site_plan *plan)
{
    if (!plan) return;
    free(plan->armed);
    free(plan->hits);
    free(plan->covered);
    free(plan->stuck);
    free(plan);
}

void site_plan_arm(struct site_plan *plan, const struct armed *armed)
{
    ASSERT(armed->site && armed->deviation && armed->site->kind == armed->deviation->kind);
    int count = plan->armed_count + 1;
    plan->armed = memory_realloc(plan->armed, (size_t)count * sizeof *plan->armed);
    plan->armed[plan->armed_count] = *armed;
    plan->hits = memory_realloc(plan->hits, (size_t)(count * plan->ranks) * sizeof *plan->hits);
    memset(plan->hits + plan->armed_count * plan->ranks, 0, (size_t)plan->ranks * sizeof *plan->hits);
    plan->covered = memory_realloc(plan->covered, (size_t)(count * plan->ranks) * sizeof *plan->covered);
    memset(plan->covered + plan->armed_count * plan->ranks, 0, (size_t)plan->ranks * sizeof *plan->covered);
    plan->stuck = memory_realloc(plan->stuck, (size_t)(count * plan->ranks) * sizeof *plan->stuck);
    memset(plan->stuck + plan->armed_count * plan->ranks, 0, (size_t)plan->ranks * sizeof *plan->stuck);
    plan->armed_count = count;
}

static bool holds(const struct at_list *list, int value)
{
    for (int i = 0; i < list->count; i++) {
        if (list->values[i] == value) return true;
    }
    return list->count == 0;
}

static bool holds_name(const char *wanted, const char *name)
{
    if (!wanted[0]) return true;
    if (!name) return false;
    size_t length = strlen(wanted);
    if (wanted[length - 1] == '*') return !strncmp(wanted, name, length - 1);
    return !strcmp(wanted, name);
}

/* Where a hit is counted, or -1 for code that runs for no rank. */
static int hit_index(const struct site_plan *plan, int armed_index, int rank)
{
    ASSERT_MESSAGE(rank < plan->ranks, "rank %d of %d", rank, plan->ranks);
    return rank < 0 ? -1 : armed_index * plan->ranks + rank;
}

static bool is_due(const struct site_plan *plan, int i, const struct site *site, const struct where *where)
{
    const struct armed *a = &plan->armed[i];
    if (a->site != site) return false;
    bool due = holds(&a->rank, where->rank) && holds(&a->stage, where->stage) && holds(&a->step, where->step) &&
               holds(&a->microbatch, where->microbatch) && holds(&a->layer, where->layer) && holds(&a->hop, where->hop) &&
               holds_name(a->param, where->param);
    if (!due) return false;
    int hit = hit_index(plan, i, where->rank);
    return !(a->once && hit >= 0 && plan->hits[hit] > 0);
}

/* The first from `from` on; -1: none. */
static int find(const struct site_plan *plan, int from, const struct site *site, const struct where *where)
{
    for (int i = from; plan && i < plan->armed_count; i++) {
        if (is_due(plan, i, site, where)) return i;
    }
    return -1;
}

const struct armed *site_peek(const struct site_plan *plan, const struct site *site, struct where where)
{
    int i = find(plan, 0, site, &where);
    return i < 0 ? NULL : &plan->armed[i];
}

const struct armed *site_pass(struct site_plan *plan, const struct site *site, struct where where)
{
    int i = find(plan, 0, site, &where);
    if (i < 0) return NULL;
    ASSERT(where.rank >= 0 && where.rank < plan->ranks);
    for (int k = find(plan, i + 1, site, &where); k >= 0; k = find(plan, k + 1, site, &where))
        plan->covered[k * plan->ranks + where.rank]++;
    plan->hits[i * plan->ranks + where.rank]++;
    return &plan->armed[i];
}

bool site_stick(struct site_plan *plan, const struct armed *armed, int rank, bool value)
{
    ptrdiff_t i = armed - plan->armed;
    ASSERT(i >= 0 && i < plan->armed_count && rank >= 0 && rank < plan->ranks);
    bool *stuck = &plan->stuck[i * plan->ranks + rank];
    *stuck = *stuck || value;
    return *stuck;
}

static uint64_t sum_over_ranks(const struct site_plan *plan, const uint32_t *counts, int armed_index)
{
    uint64_t sum = 0;
    for (int r = 0; r < plan->ranks; r++) sum += counts[armed_index * plan->ranks + r];
    return sum;
}

uint64_t site_hits(const struct site_plan *plan, int armed_index)
{
    return sum_over_ranks(plan, plan->hits, armed_index);
}

uint64_t site_covered(const struct site_plan *plan, int armed_index)
{
    return sum_over_ranks(plan, plan->covered, armed_index);
}
