/* loss_factors: see the header. Exact numbers are held to 1e-12, what went through the run's storage to a
 * few of its roundings. */
#include "scenarios/loss_factors.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/sites.h"
#include "sim/arena.h"

static double tolerance_of(enum loss_factor factor, const struct record *record)
{
    return factor == LOSS_FACTOR_UNDECLARED ? 8 * facts_storage_roundoff(&record->config) : 1e-12;
}

/* The weight that the tokens really got, over the one the factors give; the worst token. */
static double undeclared(const struct record *record, const struct loss_fact *fact)
{
    double declared = fact->compensation * fact->scale * fact->repeats / fact->denominator, worst = 1;
    for (int64_t t = 0; t < fact->token_count; t++) {
        if (fact->token_weight[t] == 0) continue; /* ignored, or declared so */
        double ratio = fact->token_weight[t] / declared;
        if (!isnan(worst) && !(fabs(ratio - 1) <= fabs(worst - 1))) worst = ratio;
    }
    return worst;
}

double loss_factor_ratio(const struct record *record, const struct rank_record *rank, const struct loss_fact *fact,
                         enum loss_factor factor)
{
    const struct loss_convention *convention = loss_convention_of(&record->config);
    const struct count_fact *count = facts_count(rank, fact->step);
    struct factor_numbers due = facts_loss_numbers(record, rank, fact), got = due;
    if (count) got.N = count->valid_global;
    switch (factor) {
    case LOSS_FACTOR_COUNT: return loss_value(convention->denominator, &due) / loss_value(convention->denominator, &got);
    case LOSS_FACTOR_DENOMINATOR: return loss_value(convention->denominator, &got) / fact->denominator;
    case LOSS_FACTOR_SCALE: return fact->scale / loss_value(convention->scale, &due);
    case LOSS_FACTOR_COMPENSATION: return fact->compensation / loss_compensation(convention, &due);
    case LOSS_FACTOR_REPEATS: return fact->repeats;
    default: return undeclared(record, fact);
    }
}

bool loss_factor_is_due(double ratio, enum loss_factor factor, const struct record *record)
{
    return fabs(ratio - 1) <= tolerance_of(factor, record);
}

const struct site *loss_factor_site(enum loss_factor factor)
{
    switch (factor) {
    case LOSS_FACTOR_COUNT: return &site_loss_token_count_reduce;
    case LOSS_FACTOR_DENOMINATOR: return &site_loss_denominator;
    case LOSS_FACTOR_COMPENSATION: return &site_dp_loss_scale;
    case LOSS_FACTOR_REPEATS: return &site_tp_loss_repeats;
    default: return &site_pp_loss_scale;
    }
}

/* step -1: of all steps. */
static struct ratio_form form_of(const struct record *record, int step, enum loss_factor factor)
{
    int capacity = record->ranks * record->config.layout.microbatches * record->config.train.steps, count = 0;
    struct ratio_sample *samples = memory_alloc((size_t)capacity * sizeof *samples);
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        for (int i = 0; i < rank->losses.count && count < capacity; i++) {
            const struct loss_fact *fact = &rank->losses.items[i];
            if (step >= 0 && fact->step != step) continue;
            double ratio = loss_factor_ratio(record, rank, fact, factor);
            if (loss_factor_is_due(ratio, factor, record)) continue;
            samples[count].numbers = facts_numbers(record, rank->data_rank, fact->step, fact->microbatch);
            samples[count++].value = ratio;
        }
    }
    int letters = factor == LOSS_FACTOR_UNDECLARED ? 2 : 5;
    struct ratio_form form = ratio_classify(samples, count, factor == LOSS_FACTOR_REPEATS ? 'T' : 'M', letters, tolerance_of(factor, record));
    free(samples);
    return form;
}

struct ratio_form loss_factor_form(const struct record *record, int step, enum loss_factor factor)
{
    /* One formula for all steps first: in one step alone two formulas may give the same numbers. */
    struct ratio_form all = form_of(record, -1, factor), own = form_of(record, step, factor);
    if (!all.found) return own;
    if (all.text[0] && isfinite(own.value) && !strcmp(all.beside_mean, all.text)) all.value = own.value;
    return all;
}

void loss_factor_describe(struct finding *finding, const struct record *record, const struct loss_fact *fact,
                          enum loss_factor factor, double ratio, const struct ratio_form *form)
{
    const struct loss_convention *convention = loss_convention_of(&record->config);
    bool token_mean = !strcmp(convention->denominator, "N");
    int rank = finding->place.rank, m = fact->microbatch;
    char what[80];
    snprintf(finding->ratio, sizeof finding->ratio, "%s", form->beside_mean);
    finding->ratio_value = form->found ? form->value : ratio;
    finding_pattern(finding, form->text);
    if (form->found) snprintf(what, sizeof what, "%s", form->text);
    else snprintf(what, sizeof what, "%.6g", ratio);
    switch (factor) {
    case LOSS_FACTOR_COUNT:
        finding_say(
            finding,
            "rank %d got %.17g as the number of valid tokens in step %d where all data ranks together counted %.17g: "
            "every token weighs %s of what is due",
            rank, facts_count(&record->rank[rank], fact->step)->valid_global, fact->step,
            facts_tokens(record, fact->step).valid, what);
        break;
    case LOSS_FACTOR_DENOMINATOR:
        finding_say(finding,
                    "rank %d divides the loss of micro-batch %d in step %d by %.17g where %.17g%s due: "
                    "every token weighs %s of what is due",
                    rank, m, fact->step, fact->denominator, fact->denominator * ratio,
                    token_mean ? " valid tokens are" : " is", what);
        break;
    case LOSS_FACTOR_SCALE:
        finding_say(
            finding,
            "rank %d multiplies the loss of micro-batch %d in step %d by %s beside %s: every token weighs %.6g times "
            "what is due",
            rank, m, fact->step, what, convention->weight, ratio);
        break;
    case LOSS_FACTOR_COMPENSATION:
        finding_say(finding,
                    "rank %d multiplies the loss of micro-batch %d in step %d by %.6g to make up for the reduction over "
                    "data ranks, where %.6g is due: every token weighs %s of what is due",
                    rank, m, fact->step, fact->compensation, fact->compensation / ratio, what);
        break;
    case LOSS_FACTOR_REPEATS:
        finding_say(finding,
                    "rank %d counts the loss of micro-batch %d in step %d, which the %d tensor-parallel ranks hold together, %.6g times "
                    "in its backward: every token weighs %s of what is due",
                    rank, m, fact->step, record->config.layout.tp, fact->repeats, what);
        break;
    default:
        finding_say(
            finding,
            "on rank %d the tokens of micro-batch %d in step %d weigh %s of what the declared factors give: a factor "
            "that no site declares",
            rank, m, fact->step, what);
    }
}
