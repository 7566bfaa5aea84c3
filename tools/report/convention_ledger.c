/* convention_ledger: the formulas of the table, evaluated. */
#include "tools/report/convention_ledger.h"

#include <math.h>

#include "scenarios/facts.h"

static void fill_entry(const struct convention_ledger *l, struct convention_entry *entry, const struct loss_convention *convention,
                       const struct loss_convention *own)
{
    *entry = (struct convention_entry){.convention = convention, .mean_low = INFINITY, .mean_high = -INFINITY,
                                       .own_low = INFINITY, .own_high = -INFINITY};
    entry->weight = arena_alloc(l->arena, (size_t)l->cells * sizeof *entry->weight);
    for (int i = 0; i < l->cells; i++) {
        const struct factor_numbers *numbers = &l->numbers[i];
        double weight = loss_value(convention->weight, numbers);
        entry->weight[i] = weight;
        if (numbers->n == 0) continue;
        double mean = weight * numbers->N, of_own = weight / loss_value(own->weight, numbers);
        entry->mean_low = fmin(entry->mean_low, mean);
        entry->mean_high = fmax(entry->mean_high, mean);
        entry->own_low = fmin(entry->own_low, of_own);
        entry->own_high = fmax(entry->own_high, of_own);
        entry->loss += l->sums[i] * weight;
        entry->logged += l->sums[i] * loss_value(convention->logged, numbers);
    }
    entry->logs_optimized = fabs(entry->logged - entry->loss) <= 1e-9 * fabs(entry->loss);
}

struct convention_ledger convention_ledger_new(const struct result *result, int step)
{
    const struct record *record = result->parallel;
    const struct loss_convention *own = loss_convention_of(&record->config);
    int built_in = loss_convention_count(), at = record->config.train.loss_normalization;
    bool foreign = at >= built_in;                        /* a plug-in's: it stands behind the table's */
    const struct layout *layout = &record->config.layout;
    struct convention_ledger l = {.step = step, .data_ranks = layout_data_ranks(layout), .microbatches = layout->microbatches,
        .cells = layout_data_ranks(layout) * layout->microbatches, .count = built_in + foreign,
        .own = foreign ? built_in : at, .arena = arena_new("convention_ledger", false)};
    l.numbers = arena_alloc(l.arena, (size_t)l.cells * sizeof *l.numbers);
    l.sums = arena_alloc(l.arena, (size_t)l.cells * sizeof *l.sums);
    l.entries = arena_alloc(l.arena, (size_t)l.count * sizeof *l.entries);
    for (int i = 0; i < l.cells; i++) {
        const struct rank_record *last = facts_rank(record, layout->pp - 1, i / l.microbatches);
        const struct loss_fact *fact = last ? facts_loss(last, step, i % l.microbatches) : NULL;
        l.numbers[i] = loss_numbers_due(record, step, i);
        l.sums[i] = fact ? fact->loss_sum : NAN;
        if (l.numbers[i].n > 0) l.token_mean += l.sums[i] / l.numbers[i].N;
    }
    for (int i = 0; i < l.count; i++) fill_entry(&l, &l.entries[i], i < built_in ? loss_convention_at(i) : own, own);
    return l;
}

void convention_ledger_done(struct convention_ledger *ledger)
{
    arena_free(ledger->arena);
    *ledger = (struct convention_ledger){0};
}

int convention_ledger_shortest(const struct convention_ledger *ledger)
{
    int shortest = -1;
    for (int i = 0; i < ledger->cells; i++) {
        if (ledger->numbers[i].n > 0 && (shortest < 0 || ledger->numbers[i].n < ledger->numbers[shortest].n)) shortest = i;
    }
    return shortest < 0 ? 0 : shortest;
}
