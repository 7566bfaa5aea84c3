/* experiment: what became of each fault. This is the one place where the list of faults meets the
 * outcome, and it comes after verdict and diagnosis.
 *
 *   not_hit   its site was never passed where it applies
 *   masked    it was hit, and the run's digest equals that of a run without faults: nothing changed at all
 *   active    anything else; it may be within rounding */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/attention_run.h"
#include "model/denoise_run.h"
#include "model/loss_convention.h"
#include "scenarios/experiment.h"
#include "scenarios/facts.h"

static uint64_t hits_of(const struct site_plan *plan, int fault)
{
    uint64_t hits = 0;
    for (int i = 0; plan && i < plan->armed_count; i++) {
        if (plan->armed[i].fault == fault) hits += site_hits(plan, i);
    }
    return hits;
}

/* How often another fault, earlier in the list, stood where this one was due. */
static uint64_t covered_of(const struct site_plan *plan, int fault)
{
    uint64_t covered = 0;
    for (int i = 0; plan && i < plan->armed_count; i++) {
        if (plan->armed[i].fault == fault) covered += site_covered(plan, i);
    }
    return covered;
}

/* The fault that does: the first in the list with a deviation at a site of this one's. */
static const char *coverer_of(const struct result *result, const struct site_plan *plan, int fault)
{
    for (int i = 0; plan && i < plan->armed_count; i++) {
        for (int k = 0; k < plan->armed_count && plan->armed[i].fault == fault; k++) {
            if (plan->armed[k].site == plan->armed[i].site && plan->armed[k].fault < fault && site_hits(plan, k) > 0)
                return result->scenario->faults[plan->armed[k].fault].name;
        }
    }
    return "another fault";
}

static const char *site_name(const struct fault_entry *entry)
{
    if (entry->site) return entry->site->name;
    return entry->fault && entry->fault->parts_count > 0 ? entry->fault->parts[0].site : "";
}

static const char *deviation_name(const struct fault_entry *entry)
{
    if (entry->deviation) return entry->deviation->name;
    return entry->fault && entry->fault->parts_count > 0 ? entry->fault->parts[0].deviation : "";
}

static bool starts_with(const char *text, const char *start)
{
    return !strncmp(text, start, strlen(start));
}

/* The counts of valid tokens per micro-batch are all the same. */
static bool equal_counts(const struct record *record)
{
    int64_t first = -1;
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].losses.count; i++) {
            if (first < 0) first = record->rank[r].losses.items[i].valid;
            if (record->rank[r].losses.items[i].valid != first) return false;
        }
    }
    return true;
}

static bool never_clipped(const struct record *record)
{
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].norms.count; i++) {
            if (record->rank[r].norms.items[i].coefficient != 1) return false;
        }
    }
    return true;
}

/* Why nothing changed, and what would show it. */
static void why_masked(const struct result *result, const struct fault_entry *entry, char *text, size_t size)
{
    const struct run_config *config = &result->scenario->config;
    const char *site = site_name(entry), *deviation = deviation_name(entry);
    int D = layout_data_ranks(&config->layout), M = config->layout.microbatches;
    bool factor =
        !strcmp(site, "pp.loss.scale") || !strcmp(site, "loss.denominator") || !strcmp(site, "fsdp.grad_divisor");
    if (factor && equal_counts(result->parallel)) {
        snprintf(text, size,
                 "all micro-batches have equally many valid tokens, so the factor is 1 here: data.packing "
                 "\"documents\" or more micro-batches would expose it");
    } else if (factor) {
        snprintf(text, size,
                 "the factor is 1 in this layout (M = %d, D = %d): more micro-batches or data ranks would expose it", M,
                 D);
    } else if ((starts_with(site, "fsdp.") || starts_with(site, "loss.") || starts_with(site, "data.")) && D == 1) {
        snprintf(
            text, size,
            "there is one data rank, so nothing is exchanged here: parallel.dp_shard of 2 or more would expose it");
    } else if (starts_with(site, "pp.send") && config->layout.pp == 1) {
        snprintf(text, size, "there is one stage: parallel.pp of 2 or more would expose it");
    } else if (!strcmp(deviation, "swap-order") && !config->layout.send_sync) {
        snprintf(text, size,
                 "sends do not wait for their receiver here, so their order is free: parallel.pipeline.send \"sync\" "
                 "would expose it");
    } else if (starts_with(site, "clip.") && never_clipped(result->parallel)) {
        snprintf(text, size,
                 "the norm stays below train.grad_clip, so nothing is clipped: a smaller grad_clip would expose it");
    } else if (!strcmp(deviation, "wrong-format") && entry->text[0]) {
        snprintf(text, size, "%s moves %s here anyway, or nothing that this format loses: another format would expose it", site, entry->text);
    } else if (!strcmp(deviation, "stale") && config->train.steps == 1) {
        snprintf(text, size, "the first step has no earlier result to take: train.steps of 2 or more would expose it");
    } else if (starts_with(site, "pp.grad") || !strcmp(site, "fsdp.sync_now")) {
        snprintf(text, size,
                 "the decision is taken here as it would be anyway, or nothing follows from it (M = %d, %d steps): where the "
                 "deviation is not what is due, more micro-batches, fsdp.sync \"each_microbatch\" or more steps may expose it",
                 M, config->train.steps);
    } else {
        snprintf(text, size,
                 "what it changes has no effect on any number of this run: other ranks, micro-batches or more steps "
                 "may expose it");
    }
}

/* A run without faults, its digest against the faulty one's. False: stopped, or an error. */
static bool same_without_faults(struct result *result, const struct experiment_options *options, bool standalone,
                                bool *ret_same, struct error *error)
{
    struct run_config config = result->scenario->config;
    struct record *healthy;
    if (config.workload == WORKLOAD_DENOISE) {
        if (standalone) config = denoise_single(&config);
        healthy = denoise_run(&config, NULL, &options->train, error);
    } else if (config.workload == WORKLOAD_ATTENTION) {
        healthy = attention_run(&config, NULL, &options->train, result->context.inputs, error);
    } else {
        config.loss_cut = loss_cut_of(&config);
        if (standalone) config.layout = layout_standalone(&config.model);
        healthy = train_run(&config, NULL, &options->train, error);
    }
    if (!healthy) return false;
    bool stopped = healthy->outcome == MACHINE_STOPPED;
    const struct record *faulty = standalone ? result->standalone : result->parallel;
    *ret_same = !memcmp(healthy->digest, faulty->digest, sizeof healthy->digest);
    result->wall_s += healthy->wall_s;
    record_free(healthy);
    return !stopped;
}

/* Why it was never hit: nothing came by, or what came by was an earlier fault's. */
static void why_not_hit(const struct result *result, const struct experiment_plans *plans, int i, struct fault_result *fault)
{
    const struct site_plan *plan = covered_of(plans->parallel, i) > 0 ? plans->parallel : plans->standalone;
    uint64_t covered = covered_of(plan, i);
    if (covered == 0) {
        snprintf(fault->why, sizeof fault->why,
                 "%s is never passed where the fault applies: look at its \"at\", or take a layout that has this place",
                 fault->site);
        return;
    }
    snprintf(fault->why, sizeof fault->why,
             "at one place one fault acts, the first in the list: %.64s took all %llu passes of %.32s. Keep the two apart by their "
             "\"at\" (rank, step, microbatch, layer), or give each a run of its own",
             coverer_of(result, plan, i), (unsigned long long)covered, fault->site);
}

/* An active fault is worth words where verdict and diagnosis don't tell. */
static void why_active(const struct result *result, const struct fault_entry *entry, struct fault_result *fault)
{
    bool reference = entry->in == FAULT_IN_STANDALONE;
    if (reference && result->verdict == VERDICT_CONSISTENT) {
        snprintf(fault->why, sizeof fault->why, "it changes numbers of the standalone run, by nothing that a check can tell from rounding");
    } else if (reference) {
        snprintf(fault->why, sizeof fault->why,
                 "it is in the standalone run alone: the parallel run, whose digest and losses are those without it, is held "
                 "against a wrong reference, and the place named is where the two part");
    } else if (result->verdict == VERDICT_CONSISTENT) {
        snprintf(fault->why, sizeof fault->why, "it changes numbers, by nothing that a check can tell from rounding");
    }
}

static void set_outcome(struct result *result, const struct experiment_plans *plans, int i, bool same)
{
    const struct fault_entry *entry = &result->scenario->faults[i];
    struct fault_result *fault = &result->faults[i];
    fault->fault = entry->name;
    fault->site = site_name(entry);
    fault->hits = hits_of(plans->parallel, i) + hits_of(plans->standalone, i);
    if (fault->hits == 0) {
        fault->outcome = FAULT_NOT_HIT;
        why_not_hit(result, plans, i, fault);
    } else if (same) {
        fault->outcome = FAULT_MASKED;
        why_masked(result, entry, fault->why, sizeof fault->why);
    } else {
        fault->outcome = FAULT_ACTIVE;
        why_active(result, entry, fault);
    }
}

bool experiment_faults(struct result *result, const struct experiment_plans *plans,
                       const struct experiment_options *options, struct error *error)
{
    const struct scenario *scenario = result->scenario;
    bool hit[2] = {false, false}, same = false;
    result->faults_count = scenario->faults_count;
    for (int i = 0; i < scenario->faults_count; i++) {
        hit[0] = hit[0] || hits_of(plans->parallel, i) > 0;
        hit[1] = hit[1] || hits_of(plans->standalone, i) > 0;
    }
    if (result->verdict == VERDICT_CONSISTENT && (hit[0] || hit[1])) {
        same = true;
        for (int run = 0; run < 2; run++) {
            bool equal = true;
            if (hit[run] && !same_without_faults(result, options, run == 1, &equal, error)) return false;
            same = same && equal;
        }
    }
    for (int i = 0; i < scenario->faults_count; i++) set_outcome(result, plans, i, same);
    return true;
}
