/* update-coverage: each element of each parameter is updated once a step by every rank that holds it.
 *
 * Read off: the write counters of every shard. Limit: exact, 1 a step; the version after it is the next step's.
 * A frozen parameter is updated by nobody, nor is one that nothing used and that train.no_gradient leaves alone, nor any
 * in a step that is left out (loss scaling).
 * A tag of weight decay is held to train.no_decay (site fsdp.no_decay; where what decays got none, optimizer.group).
 * A router's selection bias is moved once a step in every layer (moe.update_bias).
 * An empty shard needs no update. A shard that had no gradient at all is not updated either; where that is
 * due to a gradient that got lost, contribution tells. Sites: fsdp.optimizer_params where the optimizer did write and the
 * shard is as it was; fsdp.attributes where a frozen parameter is updated that has a gradient too; optimizer.no_gradient
 * where one is updated that is to be left alone; moe.empty_expert where
 * one is passed over whose expert had no row on this rank; optimizer.entries where one is updated more than once; else
 * optimizer.owns. */
#include <stdio.h>
#include <string.h>

#include "model/train.h"
#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/facts.h"

static bool has_gradient(const struct rank_record *rank, const struct update_fact *fact)
{
    for (int i = 0; i < rank->tensors.count; i++) {
        const struct tensor_fact *tensor = &rank->tensors.items[i];
        if (tensor->kind == TENSOR_GRADIENT && tensor->step == fact->step && tensor->param == fact->param) return true;
    }
    return false;
}

static bool rests(const struct record *record, int param)
{
    return train_leaves_alone(&record->config, &record->params.params[param].info);
}

/* Its expert had no row on this rank in the step. */
static bool expert_is_empty(const struct record *record, const struct rank_record *rank, const struct update_fact *fact)
{
    int expert;
    int64_t rows = 0;
    const char *name = strstr(record->params.params[fact->param].info.name, ".moe.experts.");
    if (!name || sscanf(name, ".moe.experts.%d.", &expert) != 1) return false;
    for (int i = 0; i < rank->routings.count; i++) {
        const struct routing_fact *routing = &rank->routings.items[i];
        if (routing->step == fact->step && routing->unit == fact->unit && expert < routing->experts) rows += routing->load[expert];
    }
    return rows == 0;
}

static const struct site *site_of(const struct record *record, const struct rank_record *rank, const struct update_fact *fact)
{
    if (record->frozen[fact->param] && fact->updates > 0 && has_gradient(rank, fact)) return &site_fsdp_attributes;
    if (rests(record, fact->param) && fact->updates > 0) return &site_optimizer_no_gradient;
    if (fact->updates == 0 && expert_is_empty(record, rank, fact)) return &site_moe_empty_expert;
    if (fact->updates > 1) return &site_optimizer_entries;
    bool elsewhere = !record->frozen[fact->param] && fact->updates == 1 && fact->version <= fact->step;
    return elsewhere ? &site_fsdp_optimizer_params : &site_optimizer_owns;
}

static void find_update(const struct evidence *e, struct check_output *output, int rank, const struct update_fact *fact)
{
    struct finding finding = finding_new(site_of(e->parallel, &e->parallel->rank[rank], fact),
        place_at_unit(&e->parallel->config, rank, fact->step, -1, fact->unit));
    finding.place.param = e->parallel->params.params[fact->param].info.name;
    finding.expected = !rests(e->parallel, fact->param);
    finding.got = fact->updates;
    finding_pattern(&finding, e->parallel->frozen[fact->param] ? "frozen-updated" : rests(e->parallel, fact->param) ? "unused-updated" : fact->updates == 0 ? "not-updated" : fact->updates > 1 ? "updated-twice" : "version");
    if (fact->updates == 1 && finding.expected == 1 && !e->parallel->frozen[fact->param]) {
        finding_say(&finding, "rank %d's shard of %s is at version %d after step %d", rank, finding.place.param,
                    fact->version, fact->step);
    } else {
        finding_say(&finding, "rank %d updates its shard of %s %d times in step %d", rank, finding.place.param,
                    fact->updates, fact->step);
    }
    check_find(output, &finding);
}

static void check_decay(const struct evidence *e, struct check_output *output, int rank, const struct update_fact *fact)
{
    const struct train_config *train = &e->parallel->config.train;
    const struct param_info *info = &e->parallel->params.params[fact->param].info;
    double due = train_exempts_from_decay(train, info->dims) ? 0 : train->weight_decay;
    if (fact->updates == 0 || fact->weight_decay == due) return;
    bool lost = due != 0 && fact->weight_decay == 0; /* the settings of the other group; a lost tag decays what rests */
    struct finding finding = finding_new(lost ? &site_optimizer_group : &site_fsdp_no_decay, place_at_unit(&e->parallel->config, rank, fact->step, -1, fact->unit));
    finding.place.param = info->name;
    finding.expected = due;
    finding.got = fact->weight_decay;
    finding_pattern(&finding, lost ? "other-group" : "decayed");
    finding_say(&finding, "rank %d updates its shard of %s with weight decay %g in step %d where %g is due", rank, info->name, fact->weight_decay, fact->step, due);
    check_value(output, 1, 0);
    check_find(output, &finding);
}

/* Every parameter of a rank's units has its counter. */
static bool is_held(const struct rank_record *rank, int param)
{
    for (int i = 0; i < rank->tensors.count && rank->tensors.items[i].step < 0; i++) {
        if (rank->tensors.items[i].param == param) return true;
    }
    return false;
}

/* What a rank never held is for shard-cover to tell. */
static void check_present(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                          int step)
{
    const struct record *record = e->parallel;
    for (int p = 0; p < record->params.count; p++) {
        const struct param *param = &record->params.params[p];
        if (!record_has_param(record, rank, p) || (param->info.is_expert && !is_held(rank, p))) continue;
        bool found = false;
        for (int i = 0; i < rank->updates.count && !found; i++) {
            found = rank->updates.items[i].step == step && rank->updates.items[i].param == p;
        }
        if (found) continue;
        struct update_fact missing = {.step = step, .unit = param->unit, .param = p, .version = -1};
        check_value(output, 1, 0);
        find_update(e, output, rank->rank, &missing);
    }
}

/* A layer's selection bias is moved once a step. */
static void check_balance(const struct evidence *e, struct check_output *output, int rank, const struct balance_fact *fact)
{
    check_value(output, fact->updates != 1, 0);
    if (fact->updates == 1) return;
    struct finding finding = finding_new(&site_moe_update_bias, place_at_unit(&e->parallel->config, rank, fact->step, -1, fact->unit));
    finding.expected = 1;
    finding.got = fact->updates;
    finding_pattern(&finding, "not-updated");
    finding_say(&finding, "rank %d moves the selection bias of layer %d %d times in step %d", rank, fact->unit - 1, fact->updates, fact->step);
    check_find(output, &finding);
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    for (int step = 0; step < record->config.train.steps; step++) {
        for (int r = 0; r < record->ranks; r++) {
            const struct rank_record *rank = &record->rank[r];
            for (int i = 0; i < rank->updates.count; i++) {
                const struct update_fact *fact = &rank->updates.items[i];
                if (fact->step != step || fact->elements == 0) continue;
                const struct scale_fact *scale = facts_scale(rank, step);
                int due = record->frozen[fact->param] || rests(record, fact->param) || (scale && scale->skipped) ? 0 : 1;
                bool good = fact->updates == due && fact->version == step + 1;
                check_value(output, !good, 0);
                if (!good) find_update(e, output, r, fact);
                check_decay(e, output, r, fact);
            }
            for (int i = 0; i < rank->balances.count; i++) {
                if (rank->balances.items[i].step == step) check_balance(e, output, r, &rank->balances.items[i]);
            }
            if (facts_finished(record)) check_present(e, output, rank, step);
        }
    }
}

const struct check check_update_coverage = {
    .id = "update-coverage",
    .proves = "each element of each parameter is updated exactly once a step on every rank that holds it",
    .tier = "default",
    .run = run,
};
