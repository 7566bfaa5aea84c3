/* batch-cut: the forward of a sequence does not depend on which others share its micro-batch.
 *
 * One step of each run in micro-batches of 1, of 2 and of all its sequences (scenarios/variations.h), and for every
 * sequence, at every place that is noted inside layers, each position's bits against the run as it is. With arithmetic
 * in fixed order they are equal, whatever the format; where sums are not (variations_are_exact), the difference of the
 * sketches is held against 256 roundings of fp64 a unit. Found is the first place in the dataflow.
 *
 * Sequences that were not read as due on either side have no counterpart. Cost: up to three steps of each run; so with
 * "deep", where it is asked for, or where the runs differ in what they compute forward. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/context_due.h"
#include "scenarios/facts.h"
#include "scenarios/variations.h"

static bool is_due(const struct record *record, int sequence)
{
    struct microbatch_place place = facts_place_of(record, sequence);
    return facts_sample_is_due(record, 0, place.data_rank, place.microbatch);
}

static double relative_difference(const struct rows_fact *a, const struct rows_fact *b)
{
    double squares = 0;
    for (int k = 0; k < 4; k++) squares += (a->value[k] - b->value[k]) * (a->value[k] - b->value[k]);
    return sqrt(squares / 4 / fmax(b->value[4], 1e-300));
}

static bool rows_differ(const struct record *record, const struct rows_fact *a, const struct rows_fact *b, double *ret_by, double *ret_limit)
{
    bool equal = true;
    for (int t = 0; t < b->count && equal; t++) equal = a->row[t] == b->row[t];
    *ret_by = equal ? 0 : relative_difference(a, b);
    bool exact = variations_are_exact(&record->config, record->gemm);
    *ret_limit = exact ? 0 : 256 * precision_roundoff(&record->config.precision) * (a->unit + 1);
    return !equal && !(*ret_by <= *ret_limit && *ret_limit > 0);
}

static void report(const struct evidence *e, struct check_output *output, const struct variation *v, struct rows_entry found, double by)
{
    const struct rows_fact *fact = found.fact;
    char unit[32];
    unit_name(&e->config->model, fact->unit, unit);
    int rank = found.rank;
    const struct site *decision = context_decision(v->record, 0, fact->unit, &rank);
    bool split = !decision && context_is_split_attention(v->record, fact->site);
    struct finding finding = finding_new(decision ? decision : split ? &site_layer_forward : fact->site, place_at_unit(e->config, v->standalone ? -1 : rank, 0, -1, fact->unit));
    finding.expected = 0;
    finding.got = by;
    finding_pattern(&finding, split ? "split-attention" : "batch-dependent");
    finding_say(&finding, "in the %s run the forward of sequence %d depends on what shares its micro-batch: in micro-batches of %d sequence%s "
                "%s of %s differs by %.3g, though all before it is equal to the bit",
                v->standalone ? "standalone" : "parallel", fact->sequence, v->per_microbatch, v->per_microbatch == 1 ? "" : "s",
                context_is_split_attention(v->record, fact->site) ? "the output of the split attention" : fact->site->name, unit, by);
    check_find(output, &finding);
}

static void compare_cut(const struct evidence *e, struct check_output *output, const struct variation *base, const struct variation *v)
{
    struct rows_table as_is = rows_table_new(base->record), cut = rows_table_new(v->record);
    int last = -1, reported_unit = -1;
    const struct site *reported = NULL;
    for (int i = 0; i < as_is.count; i++) {
        const struct rows_fact *fact = as_is.entries[i].fact;
        if (fact->sequence == last) continue; /* its first difference is found */
        struct rows_entry other = rows_table_find(&cut, fact);
        double by, limit;
        if (!other.fact || !is_due(base->record, fact->sequence) || !is_due(v->record, fact->sequence)) continue;
        bool differ = rows_differ(base->record, other.fact, fact, &by, &limit);
        check_value(output, by, limit);
        if (!differ) continue;
        last = fact->sequence;
        if (reported == fact->site && reported_unit == fact->unit) continue; /* another sequence, the same place */
        reported = fact->site;
        reported_unit = fact->unit;
        report(e, output, v, as_is.entries[i], by);
    }
    free(as_is.entries);
    free(cut.entries);
}

static void run(const struct evidence *e, struct check_output *output)
{
    if (e->config->model.moe.experts > 0 && e->config->model.moe.capacity_factor > 0) {
        check_skip(output, "who finds room at an expert depends on its micro-batch (model.moe.capacity_factor)");
        return;
    }
    bool any = false;
    for (int i = 0; e->variations && i < e->variations->count; i++) {
        const struct variation *v = &e->variations->items[i], *base = variations_base(e->variations, v);
        if (v->kind != VARIATION_CUT || !facts_finished(v->record) || !facts_finished(base->record)) continue;
        any = true;
        check_value(output, 0, 0);
        compare_cut(e, output, base, v);
    }
    if (any) return;
    check_skip(output, e->variations ? "there is one sequence a rank: it cannot be cut in another way"
                                     : "nothing differs in the forward; --checks deep cuts the batch in other ways all the same");
}

const struct check check_batch_cut = {
    .id = "batch-cut",
    .proves = "the forward of a sample does not depend on which samples share its micro-batch",
    .tier = "deep",
    .run = run,
};
