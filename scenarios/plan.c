/* plan: a scenario's faults as armed deviations of one run.
 *
 * A fault of the catalogue says where the real system had it (enum fault_default_at); that holds for what its entry
 * leaves open. An entry that names a rank has named the stage, one that names a parameter has named the layer.
 * Places that this layout doesn't have are armed where nothing ever is, so that the fault counts as never hit. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "scenarios/fault_entry.h"
#include "scenarios/scenario.h"
#include "sim/assertion.h"

static const int nowhere = -2;      /* -1 is what sites say where a coordinate doesn't apply */
static const double default_value = 2; /* of times, set and scale */

static void only(struct at_list *list, int value)
{
    list->count = 1;
    list->values[0] = value;
}

static void apply_argument(struct armed *armed, const struct fault_entry *entry, const struct fault_part *part,
                           const struct layout *layout)
{
    unsigned takes = fault_parameters(armed->deviation);
    bool given = takes && (entry->text[0] || entry->has_value);
    snprintf(armed->text, sizeof armed->text, "%s", given ? entry->text : part ? part->text : "");
    armed->value = given ? entry->value : part ? part->value : 0;
    if (!(takes & PARAMETER_FACTOR)) return;
    if (!armed->text[0] && !entry->has_value && armed->value == 0) {
        if (strcmp(armed->deviation->name, "per-accumulation-step") != 0) armed->value = default_value;
        else snprintf(armed->text, sizeof armed->text, "1/M");
    }
    if (armed->site->kind != SITE_COMMUNICATION || !armed->text[0]) return;
    /* The floor of the collectives knows no M or D: it is given the number. */
    struct factor_numbers numbers = fault_numbers(layout, NAN);
    struct error error = {0};
    bool good = factor_parse(armed->text, &numbers, &armed->value, &error);
    ASSERT_MESSAGE(good && isfinite(armed->value), "'%s': %s", armed->text, error.message);
    armed->text[0] = 0;
}

/* Indices from first to last in the list, which is armed's own, as many deviations as they need. */
static void arm_range(struct site_plan *plan, struct armed *armed, struct at_list *list, int first, int last)
{
    if (first > last) {
        only(list, nowhere);
        site_plan_arm(plan, armed);
    }
    while (first <= last) {
        list->count = 0;
        while (first <= last && list->count < AT_MAX) list->values[list->count++] = first++;
        site_plan_arm(plan, armed);
    }
}

static void arm(struct site_plan *plan, struct armed *armed, unsigned at, const struct run_config *config)
{
    int pp = config->layout.pp;
    if (at & AT_LAST_MICROBATCH && armed->microbatch.count == 0)
        only(&armed->microbatch, config->layout.microbatches - 1);
    if (at & (AT_MICROBATCH_ZERO | AT_MICROBATCH_ONE) && armed->microbatch.count == 0)
        only(&armed->microbatch, at & AT_MICROBATCH_ONE ? 1 : 0);
    if (at & AT_LAYER_MIDDLE && armed->layer.count == 0 && !armed->param[0])
        only(&armed->layer, config->model.layers / 2);
    if (at & AT_NO_LAYER && armed->layer.count == 0 && !armed->param[0]) only(&armed->layer, -1);
    bool open = armed->stage.count == 0 && armed->rank.count == 0;
    if (open && at & AT_DATA_RANK_ONE) {
        int data_ranks = layout_data_ranks(&config->layout);
        only(&armed->rank, (pp - 1) * data_ranks + (data_ranks > 1 ? 1 : 0));
    }
    if (open && at & AT_DATA_RANK_ONE_OF_MIDDLE) {
        int data_ranks = layout_data_ranks(&config->layout);
        only(&armed->rank, pp / 2 * data_ranks + (data_ranks > 1 ? 1 : 0));
    }
    if (open && at & AT_RANK_ONE) only(&armed->rank, 1);
    if (at & (AT_HOP_ONE | AT_HOP_LAST | AT_HOP_HOME) && armed->hop.count == 0) {
        int parts = strcmp(config->layout.context.method, "usp") ? 1 : config->layout.context.ulysses, ring = layout_cp(&config->layout) / (parts > 1 ? parts : 1);
        only(&armed->hop, at & AT_HOP_ONE ? 1 : at & AT_HOP_LAST ? ring - 1 : ring);
    }
    if (at & AT_STEP_ONE && armed->step.count == 0) only(&armed->step, 1);
    struct at_list *stage = &armed->stage;
    if (open && at & AT_STAGES_BUT_FIRST) arm_range(plan, armed, stage, 1, pp - 1);
    else if (open && at & AT_STAGES_BUT_LAST) arm_range(plan, armed, stage, 0, pp - 2);
    else if (open && at & AT_STAGE_MIDDLE) arm_range(plan, armed, stage, pp / 2, pp / 2);
    else if (open && at & AT_STAGE_LAST) arm_range(plan, armed, stage, pp - 1, pp - 1);
    else if (open && at & AT_STAGE_FIRST) arm_range(plan, armed, stage, 0, 0);
    else if (open && at & AT_STAGE_ONE) arm_range(plan, armed, stage, pp > 1 ? 1 : 0, pp > 1 ? 1 : 0);
    else if (at & AT_MICROBATCHES_BUT_LAST && armed->microbatch.count == 0)
        arm_range(plan, armed, &armed->microbatch, 0, config->layout.microbatches - 2);
    else if (at & AT_MICROBATCHES_BUT_FIRST && armed->microbatch.count == 0)
        arm_range(plan, armed, &armed->microbatch, 1, config->layout.microbatches - 1);
    else site_plan_arm(plan, armed);
}

static struct armed armed_from(const struct fault_entry *entry, int index)
{
    struct armed armed = {
        .rank = entry->rank, .stage = entry->stage, .step = entry->step, .microbatch = entry->microbatch,
        .layer = entry->layer, .hop = entry->hop, .once = entry->once, .fault = index,
    };
    snprintf(armed.param, sizeof armed.param, "%s", entry->param);
    return armed;
}

static bool arm_entry(struct site_plan *plan, const struct fault_entry *entry, int index,
                      const struct run_config *config, struct error *error)
{
    int parts = entry->fault ? entry->fault->parts_count : 1;
    for (int i = 0; i < parts; i++) {
        const struct fault_part *part = entry->fault ? &entry->fault->parts[i] : NULL;
        struct armed armed = armed_from(entry, index);
        armed.site = part ? site_registry_find(part->site) : entry->site;
        armed.deviation =
            part && armed.site ? deviation_registry_find(part->deviation, armed.site->kind) : entry->deviation;
        if (!armed.site || !armed.deviation || !deviation_applies(armed.deviation, armed.site)) {
            return error_internal(error, "fault '%s' names %s:%s, which the registries don't have", entry->name,
                                  part ? part->site : "?", part ? part->deviation : "?");
        }
        apply_argument(&armed, entry, part, &config->layout);
        arm(plan, &armed, part ? part->at : AT_EVERYWHERE, config);
    }
    return true;
}

struct site_plan *scenario_plan(const struct scenario *scenario, bool standalone, int ranks, struct error *error)
{
    struct run_config config = scenario->config;
    if (standalone) config.layout = layout_standalone(&config.model);
    struct site_plan *plan = site_plan_new(ranks);
    for (int i = 0; i < scenario->faults_count; i++) {
        const struct fault_entry *entry = &scenario->faults[i];
        bool here = entry->in == FAULT_IN_BOTH || (entry->in == FAULT_IN_STANDALONE) == standalone;
        if (!here || arm_entry(plan, entry, i, &config, error)) continue;
        site_plan_free(plan);
        return NULL;
    }
    return plan;
}
