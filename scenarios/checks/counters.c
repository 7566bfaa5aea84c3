/* counters: how many tokens an expert had, and what follows from it for the selection bias.
 *
 *   loads    an expert's rows sum to tokens x top_k of a micro-batch, minus what was dropped
 *   counts   what a micro-batch adds to the counts is its tokens that are not padding, by their choice; a step's counts are
 *            the sum over its micro-batches; what the bias is moved by is their sum over the data ranks
 *   bias     += bias_update_rate * sign(mean - count) once a step for every layer, from what it was after the step before
 * Limit: exact, the bias within a rounding. Sites: moe.count_padding, moe.counts where each running count is a rounded one,
 * moe.count_again where a recomputation counted, ep.count_reduce, moe.update_bias, moe.bias. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/facts.h"
#include "scenarios/routing_due.h"

static void check_load(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact)
{
    int64_t sum = 0, due = fact->tokens * fact->top_k - fact->dropped;
    for (int i = 0; i < fact->experts; i++) sum += fact->load[i];
    check_value(output, (double)llabs(sum - due), 0);
    if (sum == due) return;
    routing_find(e, output, &site_moe_locations, rank, fact, "lost", (double)due, (double)sum, "the experts have %lld rows for %lld tokens of %d choices each, %lld of them dropped",
                 (long long)sum, (long long)fact->tokens, fact->top_k, (long long)fact->dropped);
}

/* A step's count of expert i up to and with this micro-batch, in the order in which the rank had them. */
static double running(const struct rank_record *rank, const struct routing_fact *fact, int i)
{
    double sum = 0;
    for (int n = 0; n < rank->routings.count; n++) {
        const struct routing_fact *other = &rank->routings.items[n];
        if (other->step == fact->step && other->unit == fact->unit && other->counted) sum += (double)other->counted[i];
        if (other->microbatch == fact->microbatch && other->step == fact->step && other->unit == fact->unit) break;
    }
    return sum;
}

/* Is each running count what adding in bf16 makes of it? */
static bool is_added_in_bf16(const struct rank_record *rank, const struct routing_fact *fact, const int64_t *due)
{
    for (int i = 0; i < fact->experts; i++) {
        double after = running(rank, fact, i), before = after - (double)fact->counted[i];
        if (after != format_round(FORMAT_BF16, before + (double)due[i])) return false;
    }
    return true;
}

static void check_counted(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact,
                          const bool *padding)
{
    check_load(e, output, rank, fact);
    if (!fact->counted || !fact->whole) return;
    int64_t *due = calloc((size_t)fact->experts, sizeof *due), *with = calloc((size_t)fact->experts, sizeof *with);
    for (int64_t i = 0; i < fact->tokens * fact->top_k; i++) {
        due[fact->chosen[i]] += !padding[i / fact->top_k];
        with[fact->chosen[i]]++;
    }
    size_t bytes = (size_t)fact->experts * sizeof *due;
    bool good = !memcmp(due, fact->counted, bytes), padded = !memcmp(with, fact->counted, bytes);
    check_value(output, !good, 0);
    bool rounded = !good && !padded && is_added_in_bf16(rank, fact, due);
    for (int i = 0; i < fact->experts && !good; i++) {
        if (due[i] == fact->counted[i]) continue;
        routing_find(e, output, rounded ? &site_moe_counts : &site_moe_count_padding, rank, fact, rounded ? "rounded" : padded ? "padding" : "altered", (double)due[i], (double)fact->counted[i],
                     "%lld tokens are counted for expert %d where %lld chose it%s", (long long)fact->counted[i], i, (long long)due[i],
                     rounded ? ": the counts are added up in bf16" : padded ? ": padding is counted too" : "");
        break;
    }
    free(with);
    free(due);
}

static const struct balance_fact *balance_of(const struct rank_record *rank, int step, int unit)
{
    for (int i = 0; i < rank->balances.count; i++) {
        const struct balance_fact *fact = &rank->balances.items[i];
        if (fact->step == step && fact->unit == unit) return fact;
    }
    return NULL;
}

static void find_bias(const struct evidence *e, struct check_output *output, const struct site *site, const struct rank_record *rank,
                      const struct balance_fact *fact, const char *pattern, double expected, double got, const char *what)
{
    struct finding finding = finding_new(site, place_at_unit(&e->parallel->config, rank->rank, fact->step, -1, fact->unit));
    finding_pattern(&finding, pattern);
    finding.expected = expected;
    finding.got = got;
    finding_say(&finding, "in step %d on rank %d, layer %d: %s (%.9g where %.9g is due)", fact->step, rank->rank, fact->unit - 1, what, got, expected);
    check_value(output, 1, 0);
    check_find(output, &finding);
}

/* A step's counts of expert i: of this rank's micro-batches; over the data ranks, as each had them. */
static double counted_here(const struct rank_record *rank, const struct balance_fact *fact, int i)
{
    double sum = 0;
    for (int n = 0; n < rank->routings.count; n++) {
        const struct routing_fact *routing = &rank->routings.items[n];
        if (routing->step == fact->step && routing->unit == fact->unit && routing->counted) sum += (double)routing->counted[i];
    }
    return sum;
}

static double counted_everywhere(const struct record *record, const struct rank_record *rank, const struct balance_fact *fact, int i)
{
    double sum = 0;
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *other = &record->rank[r];
        int alike = layout_shards_alike(&record->config.layout);
        bool adds = other->stage == rank->stage && (other->tp == rank->tp || layout_slices_sequences(&record->config.layout)) && other->shard % alike == rank->shard % alike;
        const struct balance_fact *part = adds ? balance_of(other, fact->step, fact->unit) : NULL;
        sum += part ? part->counted[i] : 0;
    }
    return sum;
}

static void check_sums(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct balance_fact *fact)
{
    for (int i = 0; i < fact->experts; i++) {
        double here = counted_here(rank, fact, i), all = counted_everywhere(e->parallel, rank, fact, i);
        if (fact->counted[i] != here) {
            bool again = facts_was_chosen(rank, &site_moe_count_again, fact->step, fact->unit);
            find_bias(e, output, again ? &site_moe_count_again : &site_moe_count_padding, rank, fact, again ? "counted-again" : "altered", here, fact->counted[i],
                      again ? "a step's count of an expert has what recomputations counted again" : "a step's count of an expert is not the sum of its micro-batches'");
            return;
        }
        if (fact->summed[i] == all) continue;
        find_bias(e, output, &site_ep_count_reduce, rank, fact, fact->summed[i] == here ? "missing-ranks" : "altered", all, fact->summed[i],
                  "an expert's count is not the sum over the data ranks");
        return;
    }
}

static void check_bias(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct balance_fact *fact)
{
    const struct moe_config *moe = &e->config->model.moe;
    const struct balance_fact *last = balance_of(rank, fact->step - 1, fact->unit);
    enum format storage = run_storage(&e->parallel->config);
    double mean = 0;
    for (int i = 0; i < fact->experts; i++) mean += fact->summed[i] / fact->experts;
    for (int i = 0; i < fact->experts; i++) {
        double before = last ? last->after[i] : 0, by = fact->summed[i] - mean;
        double sign = fabs(by) < 1e-9 * mean ? 0 : by < 0 ? 1 : -1, due = format_round(storage, before + moe->bias_update_rate * sign);
        double slack = 4 * format_traits[storage].unit_roundoff * fabs(due);
        check_value(output, fabs(fact->after[i] - due), slack);
        if (fabs(fact->after[i] - due) <= slack && fact->before[i] == before) continue;
        bool skipped = fact->after[i] == before, rounded = fact->after[i] == format_round(FORMAT_BF16, due);
        find_bias(e, output, fact->updates == 0 ? &site_moe_update_bias : &site_moe_bias, rank, fact,
                  fact->updates == 0 && skipped ? "not-updated" : rounded ? "rounded" : "altered", due, fact->after[i],
                  fact->updates == 0 ? "the selection bias is not moved" : rounded ? "the selection bias is kept in bf16" : "the selection bias is not what its counts make it");
        return;
    }
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    if (e->config->model.moe.experts == 0) {
        check_skip(output, "the model has no experts");
        return;
    }
    check_value(output, 0, 0);
    routing_each(e, output, check_counted);
    for (int step = 0; step < record->config.train.steps; step++) {
        for (int r = 0; r < record->ranks; r++) {
            for (int i = 0; i < record->rank[r].balances.count; i++) {
                const struct balance_fact *fact = &record->rank[r].balances.items[i];
                if (fact->step != step) continue;
                check_sums(e, output, &record->rank[r], fact);
                check_bias(e, output, &record->rank[r], fact);
            }
        }
    }
}

const struct check check_counters = {
    .id = "counters",
    .proves = "experts' counts sum to tokens x top_k a layer, minus what was dropped; those behind the selection bias leave padding out, cover all "
              "micro-batches and data ranks, and move it once a step",
    .tier = "default",
    .measures = "tokens",
    .run = run,
};
