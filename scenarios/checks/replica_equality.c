/* replica-equality: what is replicated is bit-equal on all its holders after every step.
 *
 * Holders of the same rows of the same parameter (data ranks with whole parameters; replicas of shards; the two
 * copies of a tied embedding) compare digests of the reduced gradient and of the updated parameter. Limit: exact.
 * Sites: fsdp.reduce_grad where gradients differ over data ranks, tied.grad_reduce where they do between the tied
 * copies, though all ledgers, weights and factors are as due; optimizer.update where only parameters differ; of a router's selection
 * bias ep.count_reduce where the sums of counts differ, else moe.bias. What
 * differs since something before did has none. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/params.h"
#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/facts.h"
#include "scenarios/sequence_sums.h"
#include "scenarios/tensor_groups.h"
#include "scenarios/unit_contribution.h"

static bool same(const struct tensor_fact *a, const struct tensor_fact *b)
{
    return a->digest[0] == b->digest[0] && a->digest[1] == b->digest[1];
}

static const struct tensor_fact *fact_of(const struct record *record, int rank, enum tensor_kind kind, int step,
                                         const struct tensor_fact *like)
{
    for (int i = 0; i < record->rank[rank].tensors.count; i++) {
        const struct tensor_fact *fact = &record->rank[rank].tensors.items[i];
        if (fact->kind == kind && fact->step == step && fact->param == like->param && fact->unit == like->unit &&
            fact->first == like->first) return fact;
    }
    return NULL;
}

/* Do the two ranks agree on what this parameter was made of in the step: its value before, and its gradient? */
static bool inputs_agree(const struct record *record, const struct tensor_entry *a, const struct tensor_entry *b)
{
    int step = a->fact->step;
    const struct tensor_fact *gradient_a = fact_of(record, a->rank, TENSOR_GRADIENT, step, a->fact);
    const struct tensor_fact *gradient_b = fact_of(record, b->rank, TENSOR_GRADIENT, step, b->fact);
    const struct tensor_fact *before_a = fact_of(record, a->rank, TENSOR_PARAM, step - 1, a->fact);
    const struct tensor_fact *before_b = fact_of(record, b->rank, TENSOR_PARAM, step - 1, b->fact);
    return (!gradient_a || !gradient_b || same(gradient_a, gradient_b)) &&
           (!before_a || !before_b || same(before_a, before_b));
}

/* The reduced gradient's ledger and probes are as due on this rank, and so is what multiplied it afterwards. */
static bool gradient_is_right(const struct record *record, const struct tensor_entry *entry)
{
    const struct rank_record *rank = &record->rank[entry->rank];
    int unit = record->params.params[entry->fact->param].unit;
    for (int i = 0; i < rank->gradients.count; i++) {
        const struct gradient_fact *fact = &rank->gradients.items[i];
        if (fact->step == entry->fact->step && fact->unit == unit && fact->stage == GRADIENT_REDUCED) {
            double after = facts_grad_scale(record, rank, fact->step, unit), due = facts_grad_scale_due(record, fact->step);
            return fabs(after - due) <= 1e-9 * fabs(due) && unit_contribution_is_right(record, rank, fact);
        }
    }
    return true;
}

static bool same_coefficient(const struct record *record, const struct tensor_entry *a, const struct tensor_entry *b)
{
    const struct norm_fact *norm_a = facts_norm(&record->rank[a->rank], a->fact->step);
    const struct norm_fact *norm_b = facts_norm(&record->rank[b->rank], a->fact->step);
    return !norm_a || !norm_b || norm_a->coefficient == norm_b->coefficient;
}

/* Which reduction makes copies of a gradient equal. */
static const struct site *config_replica_site(const struct record *record, int unit)
{
    return record->config.layout.zero >= ZERO_2 && record->config.layout.dp_replicate > 1
               ? &site_hsdp_replicate_reduce
               : facts_reduction_site(&record->config, unit);
}

/* With sequence parallelism, what the sum over tp makes equal. */
static bool over_slices(const struct record *record, const struct tensor_entry *a, const struct tensor_entry *b)
{
    const struct rank_record *left = &record->rank[a->rank], *right = &record->rank[b->rank];
    return left->tp != right->tp && param_sees_part(&record->config.layout, &record->params.params[a->fact->param].info);
}

static const struct site *slice_site(const struct record *record, const struct tensor_entry *a, const struct tensor_entry *b, int step, int unit)
{
    const struct site *of = sequence_sums_other(record, &record->rank[a->rank], step, unit);
    if (!of) of = sequence_sums_other(record, &record->rank[b->rank], step, unit);
    return of ? of : &site_sp_grad_reduce;
}

/* NULL: something before is wrong, and its own check says where. */
static const struct site *site_of(const struct record *record, const struct tensor_entry *a,
                                  const struct tensor_entry *b)
{
    bool tied = a->fact->unit != b->fact->unit;
    if (a->fact->kind == TENSOR_GRADIENT) {
        if (!gradient_is_right(record, a) || !gradient_is_right(record, b)) return NULL;
        int unit = record->params.params[a->fact->param].unit, step = a->fact->step;
        if (facts_was_chosen(&record->rank[a->rank], &site_dp_bucket, step, unit)) return &site_dp_bucket;
        if (!tied && over_slices(record, a, b)) return slice_site(record, a, b, step, unit);
        return tied ? &site_tied_grad_reduce : config_replica_site(record, unit);
    }
    if (a->fact->step < 0 || !inputs_agree(record, a, b) || !same_coefficient(record, a, b)) return NULL;
    return &site_optimizer_update;
}

static void find_copy(const struct evidence *e, struct check_output *output, const struct tensor_entry *entry,
                      const struct tensor_entry *other)
{
    const struct record *record = e->parallel;
    bool tied = entry->fact->unit != other->fact->unit;
    struct finding finding = finding_new(site_of(record, entry, other),
        place_at_unit(&record->config, entry->rank, entry->fact->step, -1, entry->fact->unit));
    finding.place.param = record->params.params[entry->fact->param].info.name;
    finding_pattern(&finding, tied ? "one-use" : "copies-differ");
    finding_say(&finding, "after step %d the %s of %s, elements %lld to %lld, on rank %d is not what rank %d has%s",
                entry->fact->step, entry->fact->kind == TENSOR_GRADIENT ? "gradient" : "value", finding.place.param,
                (long long)entry->fact->first, (long long)(entry->fact->first + entry->fact->elements - 1),
                entry->rank, other->rank, tied ? ", where the other use of the tied embedding is" : "");
    check_value(output, 1, 0);
    check_find(output, &finding);
}

/* Entries first .. first+count-1 hold the same rows at the same place. Who is not of the majority is named; where
 * there is none, all are. */
static void check_copies(const struct evidence *e, struct check_output *output, const struct tensor_entry *first,
                         int count)
{
    const struct tensor_entry *common = first;
    int most = 0;
    for (int i = 0; i < count; i++) {
        int like = 0;
        for (int k = 0; k < count; k++) like += same(first[i].fact, first[k].fact);
        if (like > most) {
            most = like;
            common = &first[i];
        }
    }
    if (most == count) return;
    for (int i = 0; i < count; i++) {
        bool common_too = same(first[i].fact, common->fact);
        if (common_too && most * 2 > count) continue; /* the majority is right */
        const struct tensor_entry *other = common;
        for (int k = 0; common_too && k < count; k++) {
            if (!same(first[k].fact, common->fact)) other = &first[k];
        }
        find_copy(e, output, &first[i], other);
    }
}

static bool same_rows(const struct tensor_fact *a, const struct tensor_fact *b)
{
    return a->step == b->step && a->kind == b->kind && a->param == b->param && a->unit == b->unit &&
           a->part == b->part && a->first == b->first && a->elements == b->elements;
}

/* Entries first .. end-1, the tied copy of a parameter, against the same rows where the parameter has its place
 * (earlier in the order). Returns whether there are any. */
static bool check_tied(const struct evidence *e, struct check_output *output, const struct tensor_entry *entries,
                       int first, int end)
{
    const struct tensor_entry *here = &entries[first];
    if (here->fact->unit == e->parallel->params.params[here->fact->param].unit) return false;
    int from = -1, to = -1;
    for (int k = first - 1; k >= 0; k--) {
        struct tensor_fact like = *here->fact;
        like.unit = entries[k].fact->unit;
        if (like.step != entries[k].fact->step || like.kind != entries[k].fact->kind ||
            like.param != entries[k].fact->param)
            break;
        if (like.unit == here->fact->unit || !same_rows(entries[k].fact, &like)) continue;
        from = k;
        if (to < 0) to = k;
    }
    if (from < 0) return false;
    if (same(entries[from].fact, here->fact)) return true;
    for (int k = from; k <= to; k++) find_copy(e, output, &entries[k], here);
    for (int k = first; k < end; k++) find_copy(e, output, &entries[k], &entries[from]);
    return true;
}

/* The selection bias of a layer on the first data rank of its stage, and here. */
static int check_biases(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    int compared = 0;
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r], *first = facts_rank(record, rank->stage, 0);
        for (int i = 0; first && first != rank && i < rank->balances.count && i < first->balances.count; i++) {
            const struct balance_fact *here = &rank->balances.items[i], *there = &first->balances.items[i];
            size_t bytes = (size_t)here->experts * sizeof *here->after;
            bool equal = !memcmp(here->after, there->after, bytes), before = !memcmp(here->before, there->before, bytes);
            compared++;
            check_value(output, !equal, 0);
            if (equal) continue;
            bool summed = !memcmp(here->summed, there->summed, bytes);
            struct finding finding = finding_new(!before ? NULL : summed ? &site_moe_bias : &site_ep_count_reduce,
                place_at_unit(&record->config, rank->rank, here->step, -1, here->unit));
            finding_pattern(&finding, "copies-differ");
            finding_say(&finding, "after step %d the selection bias of layer %d on rank %d is not what rank %d has%s", here->step, here->unit - 1, rank->rank,
                        first->rank, summed ? "" : ", nor is the sum of counts behind it");
            check_find(output, &finding);
        }
    }
    return compared;
}

static void run(const struct evidence *e, struct check_output *output)
{
    struct tensor_groups groups = tensor_groups_new(e->parallel);
    int compared = 0;
    for (int i = 0; i < groups.count;) {
        int end = i + 1;
        while (end < groups.count && same_rows(groups.entries[i].fact, groups.entries[end].fact)) end++;
        const struct tensor_entry *here = &groups.entries[i];
        bool empty = here->fact->elements == 0;
        if (end - i > 1 && !empty) {
            check_copies(e, output, here, end - i);
            compared++;
        }
        compared += !empty && check_tied(e, output, groups.entries, i, end);
        i = end;
    }
    free(groups.entries);
    compared += check_biases(e, output);
    if (compared == 0) check_skip(output, "nothing is held twice in this layout");
    else check_value(output, 0, 0);
}

const struct check check_replica_equality = {
    .id = "replica-equality",
    .proves = "what several ranks hold copies of is bit-equal on all of them after every step: gradients and "
              "parameters over data ranks, the two copies of a tied embedding, a router's selection bias",
    .tier = "default",
    .run = run,
};
