/* communication-count: calls, messages and bytes are what layout and algorithm cost.
 *
 *   calls      of each purpose on each rank, against what the layout makes due: a unit is gathered once a step, or for
 *              each forward and backward where it is resharded; a bucket is reduced once a step, or for each
 *              micro-batch; each micro-batch crosses each boundary of stages once each way
 *   messages, bytes   of each collective, over all ranks, against the closed form of its declared algorithm, P members, n
 *              elements in all:   all_gather, reduce_scatter      P (P-1),   n (P-1)
 *                                 all_reduce ring, fold           2 P (P-1), 2 n (P-1)
 *                                 all_reduce tree                 2 (P-1),   2 n (P-1)
 *                                 all_reduce halving_doubling     2 Q log2 Q + 2 (P-Q), 2 n (P-1), Q the power of two
 *                                 broadcast                       P-1,       n (P-1)
 * Limit: exact. More is a waste, less is a loss; both are findings. Site: that of the purpose; none where another
 * decision (fsdp.sync_now) explains it. Whole runs only. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/loss_convention.h"
#include "model/sites.h"
#include "scenarios/call_due.h"
#include "model/plugin/plugin.h"
#include "scenarios/context_due.h"
#include "scenarios/dispatch_calls.h"
#include "scenarios/check.h"
#include "scenarios/context_checks.h"
#include "scenarios/facts.h"

/* ---- calls ---- */

static size_t padded(int64_t elements)
{
    return (size_t)((elements + 15) / 16 * 16);
}

/* Of experts: of as many as a rank has. */
static size_t trained_elements(const struct record *record, const struct rank_record *rank, int unit)
{
    bool experts = unit_is_experts(&record->config.model, unit);
    size_t sum = 0;
    for (int p = 0; p < record->params.count; p++) {
        const struct param *param = &record->params.params[p];
        if (param->unit == unit && !record->frozen[p] && (!experts || record_has_param(record, rank, p))) sum += padded(facts_elements_of(record, p));
    }
    return sum;
}

static bool is_tied_apart(const struct record *record)
{
    return record->config.model.tie_embeddings && record->config.layout.pp > 1;
}

/* Buckets of one stage, from the rule and not from the code that cuts them (model/bucket_cut.c): a check that asked that
 * code could not fail where it cuts wrongly. The rule: the stage's trained elements, each parameter padded to 16, lie in
 * stretches, which end where a unit stands alone; a stretch of n elements is ceil(n / bucket_elements) buckets, one where
 * bucket_elements is 0. With 0 and with zero 3 every unit stands alone; else only the tied embedding on two stages does. */
static int64_t buckets_of(size_t stretch, size_t limit)
{
    return stretch == 0 ? 0 : limit == 0 ? 1 : (int64_t)((stretch + limit - 1) / limit);
}

static int64_t buckets_due(const struct record *record, const struct rank_record *rank)
{
    const struct layout *layout = &record->config.layout;
    size_t limit = layout->zero == ZERO_3 ? 0 : (size_t)layout->bucket_elements, stretch = 0;
    bool copy = is_tied_apart(record) && facts_is_last_stage(record, rank);
    int64_t buckets = 0;
    for (int i = 0; i < rank->units + copy; i++) {
        int unit = i == rank->units ? 0 : rank->first_unit + i;
        size_t elements = trained_elements(record, rank, unit);
        if (limit == 0 || (is_tied_apart(record) && unit == 0)) buckets += buckets_of(elements, limit);
        else stretch += elements;
    }
    return buckets + buckets_of(stretch, limit);
}

/* The same of experts' units, where they are apart. */
static int64_t experts_buckets_due(const struct record *record, const struct rank_record *rank)
{
    const struct layout *layout = &record->config.layout;
    size_t limit = layout->zero == ZERO_3 ? 0 : (size_t)layout->bucket_elements, stretch = 0;
    int64_t buckets = 0;
    for (int unit = unit_count(&record->config.model); unit < gradient_unit_count(&record->config); unit++) {
        if (!record_has_unit(record, rank, unit)) continue;
        size_t elements = trained_elements(record, rank, unit);
        if (limit == 0) buckets += buckets_of(elements, limit);
        else stretch += elements;
    }
    return buckets + buckets_of(stretch, limit);
}

static int64_t experts_units(const struct record *record, const struct rank_record *rank)
{
    int64_t count = 0;
    for (int unit = unit_count(&record->config.model); unit < gradient_unit_count(&record->config); unit++) count += record_has_unit(record, rank, unit);
    return count;
}

static int64_t trained_units(const struct record *record, const struct rank_record *rank)
{
    int64_t count = 0;
    bool copy = is_tied_apart(record) && facts_is_last_stage(record, rank);
    for (int unit = 0; unit < gradient_unit_count(&record->config); unit++)
        count += record_has_unit(record, rank, unit) && trained_elements(record, rank, unit) > 0;
    return count + (copy && trained_elements(record, rank, 0) > 0);
}

/* All-gathers of a step. */
static int64_t gathers_due(const struct record *record, const struct rank_record *rank)
{
    const struct layout *layout = &record->config.layout;
    bool last = facts_is_last_stage(record, rank), copy = is_tied_apart(record) && last;
    if (layout->zero == ZERO_0) return 0;
    if (layout->zero != ZERO_3) return buckets_due(record, rank) + experts_buckets_due(record, rank);
    int64_t experts = experts_units(record, rank);
    if (!layout->reshard_after_forward) return rank->units + experts + copy;
    /* The embedding's backward reads no parameter, unless it is the output too. */
    bool first = rank->first_unit == 0, reads_again = last && record->config.model.tie_embeddings && layout->pp == 1;
    return layout->microbatches * (2 * ((int64_t)rank->units + experts + copy) - (first && !reads_again));
}

static bool carries_loss_scale(const struct record *record)
{
    return record->config.train.loss_scale.kind != LOSS_SCALING_NONE;
}

/* One for the layers of a stage that have a selection bias. */
static int64_t count_reductions(const struct record *record, const struct rank_record *rank)
{
    const struct model_config *model = &record->config.model;
    for (int u = rank->first_unit; u < rank->first_unit + rank->units; u++) {
        bool layer = u >= 1 && u <= model->layers;
        if (layer && model_layer_has_experts(model, u - 1) && model->moe.balance == MOE_BALANCE_NOAUX_TC) return record->config.train.steps;
    }
    return 0;
}

static int64_t calls_due(const struct record *record, const struct rank_record *rank, const struct site *site)
{
    const struct layout *layout = &record->config.layout;
    int64_t steps = record->config.train.steps, M = layout->microbatches, each = layout->sync == SYNC_EACH_MICROBATCH ? M : 1;
    bool first = rank->stage == 0, last = facts_is_last_stage(record, rank);
    if (site == &site_fsdp_unshard) return steps * gathers_due(record, rank);
    if (site == &site_fsdp_reduce_grad) return layout->zero >= ZERO_2 ? steps * each * buckets_due(record, rank) : 0;
    if (site == &site_dp_all_reduce_grad) return layout->zero < ZERO_2 ? steps * each * buckets_due(record, rank) : 0;
    if (site == &site_ep_reduce_grad) return steps * each * experts_buckets_due(record, rank);
    if (site == &site_hsdp_replicate_reduce)
        return layout->zero >= ZERO_2 && layout->dp_replicate > 1 ? steps * trained_units(record, rank) : 0;
    if (site == &site_tied_grad_reduce)
        return is_tied_apart(record) && (first || last) && trained_elements(record, rank, 0) > 0 ? steps : 0;
    if (site == &site_pp_send_activation) return last ? 0 : steps * M;
    if (site == &site_pp_send_grad) return first ? 0 : steps * M;
    if (site == &site_clip_norm_reduce || site == &site_loss_report_reduce || site == &site_loss_report_broadcast) return steps;
    if (site == &site_ep_count_reduce) return count_reductions(record, rank);
    if (site == &site_amp_found_inf_reduce) return carries_loss_scale(record) ? steps : 0;
    int64_t context = context_calls_due(record, rank, site);
    if (context >= 0) return context;
    return dispatch_calls_due(record, rank, site); /* -1: not counted here: loss.token_count_reduce depends on the convention */
}

static int64_t calls_made(const struct rank_record *rank, const struct site *site)
{
    int64_t count = 0;
    for (int i = 0; rank->communicator && i < communicator_traffic_count(rank->communicator); i++) {
        const struct traffic *t = communicator_traffic(rank->communicator, i);
        if (!strcmp(t->purpose, site->name)) count += (int64_t)t->count;
    }
    return count;
}

/* Another decision was taken than is due: what follows from it is told there. */
static bool decided_otherwise(const struct record *record, const struct rank_record *rank, const struct site *site)
{
    bool reduces = site == &site_fsdp_reduce_grad || site == &site_dp_all_reduce_grad || site == &site_ep_reduce_grad, each = record->config.layout.sync == SYNC_EACH_MICROBATCH;
    int last = record->config.layout.microbatches - 1;
    for (int i = 0; reduces && i < rank->syncs.count; i++) {
        const struct sync_fact *fact = &rank->syncs.items[i];
        if (fact->synced != (each || fact->microbatch == last)) return true;
    }
    return false;
}

/* Parameters that were not dropped after a forward are not gathered for the backward. NULL: another check tells where. */
static const struct site *site_of_calls(const struct record *record, const struct rank_record *rank, const struct site *site)
{
    for (int step = 0; site == &site_fsdp_unshard && step < record->config.train.steps; step++) {
        if (facts_was_chosen(rank, &site_fsdp_reshard, step, -1)) return &site_fsdp_reshard;
    }
    const struct site *decision = context_calls_decision(record, rank, site);
    if (decision) return decision;
    return decided_otherwise(record, rank, site) ? NULL : site;
}

/* A call in another group than is due moves other traffic, though members agree. */
static void check_group(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    for (int i = 0; rank->communicator && i < communicator_calls(rank->communicator); i++) {
        const struct call_record *call = communicator_call(rank->communicator, i);
        const struct site *site = model_site_find(call->purpose);
        struct call_due due;
        bool counts = site == &site_amp_found_inf_reduce || site == &site_loss_token_count_reduce;
        uint64_t least = site == &site_amp_found_inf_reduce ? 1 : loss_convention_of(&e->parallel->config)->counts_at_end ? 1 : 3;
        if (!counts || strcmp(call->op, "all_reduce") != 0 || !call_due(&e->parallel->config, site, &due)) continue;
        if (!strcmp(call->group, due.group) && call->count >= least) continue;
        struct finding finding = finding_new(site, place_at(rank->rank, call->step, -1));
        finding_pattern(&finding, "calls-differ");
        finding_say(&finding, "rank %d calls %s in step %d in group %s with %llu elements; due are group %s and %llu elements", rank->rank,
                    site->name, call->step, call->group, (unsigned long long)call->count, due.group, (unsigned long long)least);
        check_value(output, 1, 0);
        check_find(output, &finding);
        return;
    }
}

static void check_calls(const struct evidence *e, struct check_output *output, const struct rank_record *rank)
{
    for (int s = 0; s < model_site_count(); s++) {
        const struct site *site = model_site(s);
        if (site->kind != SITE_COMMUNICATION) continue;
        int64_t due = calls_due(e->parallel, rank, site), made = calls_made(rank, site);
        if (due < 0 || made == due) continue;
        struct finding finding = finding_new(site_of_calls(e->parallel, rank, site), place_at(rank->rank, -1, -1));
        finding.expected = (double)due;
        finding.got = (double)made;
        finding_pattern(&finding, "calls-differ");
        finding_say(&finding, "rank %d calls %s %lld times in the whole run; this layout needs %lld calls of it there", rank->rank, site->name,
                    (long long)made, (long long)due);
        check_value(output, (double)llabs(made - due), 0);
        check_find(output, &finding);
    }
}

/* ---- messages and bytes ---- */

struct cost { uint64_t messages, bytes; };

static bool cost_of(const struct call_record *call, uint64_t P, struct cost *ret)
{
    uint64_t Q = 1, log2_Q = 0, counted = call->count - (call->uncounted < call->count ? call->uncounted : call->count);
    uint64_t bytes = counted * (uint64_t)format_traits[call->format].bytes;
    bool all_reduce = !strcmp(call->op, "all_reduce");
    for (; 2 * Q <= P; Q *= 2) log2_Q++;
    if (!strcmp(call->op, "all_gather") || !strcmp(call->op, "reduce_scatter")) {
        *ret = (struct cost){P * (P - 1), bytes * (P - 1)};
    } else if (all_reduce && (!strcmp(call->algorithm, "ring") || !strcmp(call->algorithm, "fold"))) {
        *ret = (struct cost){2 * P * (P - 1), 2 * bytes * (P - 1)};
    } else if (all_reduce && !strcmp(call->algorithm, "tree")) {
        *ret = (struct cost){2 * (P - 1), 2 * bytes * (P - 1)};
    } else if (all_reduce && !strcmp(call->algorithm, "halving_doubling")) {
        *ret = (struct cost){2 * Q * log2_Q + 2 * (P - Q), 2 * bytes * (P - 1)};
    } else if (!strcmp(call->op, "broadcast")) {
        *ret = (struct cost){P - 1, bytes * (P - 1)};
    } else {
        return false;
    }
    return true;
}

/* What all calls of a purpose cost by their algorithms: each call once, on its group's first member. false: unknown. */
static bool cost_due(const struct record *record, const char *purpose, struct cost *ret)
{
    *ret = (struct cost){0};
    for (int r = 0; r < record->ranks; r++) {
        struct communicator *c = record->rank[r].communicator;
        for (int i = 0; c && i < communicator_calls(c); i++) {
            const struct call_record *call = communicator_call(c, i);
            struct cost cost;
            const struct group *group = communicator_group(c, call->group);
            if (strcmp(call->purpose, purpose) != 0 || !group || group->me != 0) continue;
            if (!cost_of(call, (uint64_t)group->size, &cost)) return false;
            ret->messages += cost.messages;
            ret->bytes += cost.bytes;
        }
    }
    return true;
}

static void check_cost(const struct evidence *e, struct check_output *output, const struct site *site)
{
    const struct record *record = e->parallel;
    struct cost due, made = {0};
    if (!cost_due(record, site->name, &due)) return;
    for (int r = 0; r < record->ranks; r++) {
        const struct communicator *c = record->rank[r].communicator;
        for (int i = 0; c && i < communicator_traffic_count(c); i++) {
            const struct traffic *t = communicator_traffic(c, i);
            if (strcmp(t->purpose, site->name) != 0) continue;
            made.messages += t->messages;
            made.bytes += t->bytes;
        }
    }
    check_value(output, made.messages != due.messages || made.bytes != due.bytes, 0);
    if (made.messages == due.messages && made.bytes == due.bytes) return;
    struct finding finding = finding_new(site, place_at(-1, -1, -1));
    finding.expected = (double)due.bytes;
    finding.got = (double)made.bytes;
    finding_pattern(&finding, "traffic-differs");
    finding_say(&finding, "over all ranks, %s sent %llu messages with %llu bytes; the algorithm of its calls takes %llu messages with %llu bytes", site->name,
                (unsigned long long)made.messages, (unsigned long long)made.bytes, (unsigned long long)due.messages,
                (unsigned long long)due.bytes);
    check_find(output, &finding);
}

/* What a plug-in sends is its own to choose: nothing is declared that it could be held against. */
static void skip_of_plugin(const struct evidence *e, struct check_output *output)
{
    char why[160];
    uint64_t least = UINT64_MAX, most = 0;
    for (int r = 0; r < e->parallel->ranks; r++) {
        const struct communicator *c = e->parallel->rank[r].communicator;
        uint64_t messages = 0;
        for (int i = 0; c && i < communicator_traffic_count(c); i++) messages += communicator_traffic(c, i)->messages;
        least = messages < least ? messages : least;
        most = messages > most ? messages : most;
    }
    if (least == most) snprintf(why, sizeof why, "a plug-in declares no count of messages; it sent %llu from each rank", (unsigned long long)most);
    else snprintf(why, sizeof why, "a plug-in declares no count of messages; it sent %llu to %llu from a rank", (unsigned long long)least, (unsigned long long)most);
    check_skip(output, why);
}

static void run(const struct evidence *e, struct check_output *output)
{
    if (e->config->workload != WORKLOAD_TRAIN) {
        if (e->config->plugin && context_method_of(e->config) == plugin_method(e->config->plugin)) skip_of_plugin(e, output);
        else context_calls(e, output);
        return;
    }
    const struct record *record = e->parallel;
    check_value(output, 0, 0);
    if (!facts_finished(record)) {
        check_skip(output, "the run did not finish");
        return;
    }
    if (record->config.train.steps != record->steps_due) {
        check_skip(output, "the numbers stopped being finite, and the steps after that are left out");
        return;
    }
    for (int r = 0; r < record->ranks; r++) {
        check_calls(e, output, &record->rank[r]);
        check_group(e, output, &record->rank[r]);
    }
    for (int s = 0; s < model_site_count(); s++) {
        const struct site *site = model_site(s);
        if (site->kind == SITE_COMMUNICATION && !(site->facets & FACET_POINT_TO_POINT)) check_cost(e, output, site);
    }
}

const struct check check_communication_count = {
    .id = "communication-count",
    .proves = "each rank communicates exactly as often as its layout needs (a gather of a unit, a reduction of a bucket, a transfer of "
              "a micro-batch between stages, neither missing nor extra), and each collective sends exactly the messages and bytes "
              "that its algorithm takes",
    .tier = "default",
    .run = run,
    .workloads = CHECK_IN(WORKLOAD_TRAIN) | CHECK_IN(WORKLOAD_ATTENTION) | CHECK_IN(WORKLOAD_DENOISE),
};
