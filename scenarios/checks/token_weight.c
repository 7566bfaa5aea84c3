/* token-weight: every valid token weighs what train.loss_normalization makes due (1/N) in every gradient, an
 * ignored one nothing.
 *
 * Measured on the numbers, twice. Where backward begins: the cotangent that multiplied each token's
 * gradient. In the reduced gradients: probes, one number for each (data rank,
 * micro-batch), that went through the same additions, reductions and divisions; each must come out at the weight due of its
 * tokens (twice that where a tied parameter holds two uses), and those of the step before at 0.
 * Limit: 64 roundings of the run's format, relative to the weight due. Sites: the loss factor that is not as
 * due; for a gradient whose probes do not follow from what went in, the factor on its way that says so
 * (pp.grad.accumulate, fsdp.grad_divisor, dp.grad.accumulate, pp.grad_scale), else fsdp.reduce_grad. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/loss_factors.h"
#include "scenarios/unit_contribution.h"

static double limit_of(const struct record *record)
{
    return 64 * facts_storage_roundoff(&record->config);
}

/* The worst token's weight over what is due, and whether more tokens have one than are valid. */
static double worst_weight(const struct loss_fact *fact, double due, bool *ret_ignored)
{
    double worst = 1;
    int64_t weighing = 0;
    for (int64_t t = 0; t < fact->token_count; t++) {
        if (fact->token_weight[t] == 0) continue;
        weighing++;
        double ratio = fact->token_weight[t] / due;
        if (!isnan(worst) && !(fabs(ratio - 1) <= fabs(worst - 1))) worst = ratio;
    }
    *ret_ignored = weighing > fact->valid;
    return weighing < fact->valid ? 0 : worst;
}

static void check_seed(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                       const struct loss_fact *fact, const struct ratio_form forms[LOSS_FACTORS])
{
    const struct record *record = e->parallel;
    struct factor_numbers numbers = facts_loss_numbers(record, rank, fact);
    double due = loss_seed(loss_convention_of(&record->config), &numbers);
    bool ignored;
    double worst = worst_weight(fact, due, &ignored);
    check_value(output, fabs(worst - 1), limit_of(record));
    struct finding finding = finding_new(&site_pp_loss_scale, place_at(rank->rank, fact->step, fact->microbatch));
    finding.expected = due;
    finding.got = worst * due;
    if (ignored) {
        finding_pattern(&finding, "ignored-tokens");
        finding_say(&finding, "rank %d gives ignored tokens of micro-batch %d in step %d a weight in the gradient",
                    rank->rank, fact->microbatch, fact->step);
        check_find(output, &finding);
    }
    if (fabs(worst - 1) <= limit_of(record)) return;
    for (int factor = 0; factor < LOSS_FACTORS; factor++) {
        double ratio = loss_factor_ratio(record, rank, fact, (enum loss_factor)factor);
        if (loss_factor_is_due(ratio, (enum loss_factor)factor, record)) continue;
        finding.site = loss_factor_site((enum loss_factor)factor);
        loss_factor_describe(&finding, record, fact, (enum loss_factor)factor, ratio, &forms[factor]);
        break;
    }
    check_find(output, &finding);
}

/* What the ledger of a gradient says about one (data rank, micro-batch) of a step: multiplicity, weight. */
static void ledger_weight(const struct ledger *ledger, int step, int data_rank, int microbatch, int *ret_times,
                          double *ret_weight)
{
    *ret_times = 0;
    *ret_weight = 0;
    for (int i = 0; i < ledger->count; i++) {
        const struct ledger_term *term = &ledger->terms[i];
        if (term->origin.step != step || term->origin.rank != data_rank || term->origin.microbatch != microbatch)
            continue;
        *ret_times += term->times;
        *ret_weight += term->times * term->scale;
    }
}

static bool close_to(double value, double due, double limit)
{
    return fabs(value - due) <= limit * fmax(fabs(due), 1e-300);
}

/* Uses of the unit's parameters in one micro-batch: 2 for an embedding that is the output too. */
static int uses_of(const struct record *record, int unit)
{
    return unit == 0 && record->config.model.tie_embeddings ? 2 : 1;
}

struct probe_case {
    const struct rank_record *rank;
    const struct gradient_fact *fact;
    int data_rank, microbatch;
    double got, due;
};

static void find_probe(const struct evidence *e, struct check_output *output, const struct probe_case *c)
{
    const struct record *record = e->parallel;
    const struct loss_fact *loss =
        facts_loss(facts_rank(record, record->config.layout.pp - 1, c->data_rank), c->fact->step, c->microbatch);
    double limit = limit_of(record), divisor = facts_unit_divisor_due(&record->config, c->fact->unit), weight;
    int due_times = uses_of(record, c->fact->unit) * facts_copies_due(&record->config, c->fact->unit);
    int times;
    ledger_weight(&c->fact->ledger, c->fact->step, c->data_rank, c->microbatch, &times, &weight);
    double after = facts_grad_scale_due(record, c->fact->step);
    double used = facts_grad_scale(record, c->rank, c->fact->step, c->fact->unit);
    const struct site *accumulated =
        unit_contribution_was_accumulated(record, c->rank, c->fact->step, c->fact->unit);
    bool own_doing = accumulated && facts_was_scaled(c->rank, accumulated, c->fact->step, c->fact->unit);
    double seeded = loss ? loss->seed / divisor * times * after : 0; /* what went in, if all that follows were right */
    if (times == due_times && close_to(c->got, seeded, limit))
        return; /* told where backward began */
    bool on_ledger = close_to(c->got, weight, limit);
    bool reduced = facts_was_reduced(c->rank, c->fact->step, c->fact->unit);
    const struct site *site = on_ledger && (!reduced || times != due_times)
                                  ? NULL /* contribution tells where */
                              : on_ledger && accumulated
                                  ? (own_doing ? accumulated : NULL) /* scale-ledger tells on which rank */
                              : on_ledger && !facts_divisors_are_due(record, c->rank, c->fact->step, c->fact->unit)
                                  ? facts_divisor_site(&record->config, c->fact->unit)
                              : on_ledger && !close_to(used, after, 1e-12)
                                  ? unit_contribution_grad_scale(record, c->rank, c->fact->step)
                                  : unit_contribution_reduction(record, c->rank, c->fact->step, c->fact->unit);
    struct finding finding =
        finding_new(site, place_at_unit(&record->config, c->rank->rank, c->fact->step, -1, c->fact->unit));
    struct ratio_sample sample = {facts_numbers(record, c->data_rank, c->fact->step, c->microbatch),
                                  !on_ledger && weight != 0 ? c->got / weight : c->got / c->due};
    struct ratio_form form = ratio_classify(&sample, 1, 'D', 2, limit);
    char name[32];
    unit_name(&record->config.model, c->fact->unit, name);
    finding.expected = c->due;
    finding.got = c->got;
    if (site) {
        snprintf(finding.ratio, sizeof finding.ratio, "%s", form.text);
        finding.ratio_value = sample.value;
        finding_pattern(&finding, form.text);
    }
    finding_say(&finding,
                "in the gradient of %s on rank %d in step %d, micro-batch %d of data rank %d weighs %.6g times what is due (%s%s)%s",
                name, c->rank->rank, c->fact->step, c->microbatch, c->data_rank, c->got / c->due,
                loss_convention_of(&record->config)->weight,
                uses_of(record, c->fact->unit) > 1 ? " for each of the unit's two uses" : "",
                on_ledger ? "" : ": the numbers do not have the weight that was declared on their way");
    check_find(output, &finding);
}

static void check_probes(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                         const struct gradient_fact *fact)
{
    const struct record *record = e->parallel;
    int D = layout_data_ranks(&record->config.layout), M = record->config.layout.microbatches;
    const struct scale_fact *scale = facts_scale(rank, fact->step);
    if (fact->stage != GRADIENT_REDUCED || fact->probe_count < 2 * D * M || (scale && scale->found)) return;
    for (int i = 0; i < fact->pieces * 2 * D * M; i++) {
        int parity = i / (D * M) % 2, data_rank = i / M % D;
        double due = uses_of(record, fact->unit) * loss_weight_due(record, fact->step, data_rank, i % M);
        double here = parity == (fact->step & 1) ? due : 0, error = fabs(fact->probe[i] - here) / due;
        check_value(output, error, limit_of(record));
        if (error <= limit_of(record)) continue;
        struct probe_case probe_case = {rank, fact, data_rank, i % M, fact->probe[i], due};
        if (parity == (fact->step & 1)) {
            find_probe(e, output, &probe_case);
        } else {
            struct finding finding =
                finding_new(NULL, place_at_unit(&record->config, rank->rank, fact->step, -1, fact->unit));
            char name[32];
            unit_name(&record->config.model, fact->unit, name);
            finding_say(&finding,
                        "the gradient of %s on rank %d in step %d still holds micro-batch %d of data rank %d of an "
                        "earlier step",
                        name, rank->rank, fact->step, i % M, data_rank);
            check_find(output, &finding);
        }
        return; /* the first of a gradient tells */
    }
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    for (int step = 0; step < record->config.train.steps; step++) {
        struct ratio_form forms[LOSS_FACTORS];
        for (int factor = 0; factor < LOSS_FACTORS; factor++)
            forms[factor] = loss_factor_form(record, step, (enum loss_factor)factor);
        for (int r = 0; r < record->ranks; r++) {
            const struct rank_record *rank = &record->rank[r];
            for (int i = 0; i < rank->losses.count; i++) {
                if (rank->losses.items[i].step == step) check_seed(e, output, rank, &rank->losses.items[i], forms);
            }
            for (int i = 0; i < rank->gradients.count; i++) {
                if (rank->gradients.items[i].step == step) check_probes(e, output, rank, &rank->gradients.items[i]);
            }
        }
    }
}

const struct check check_token_weight = {
    .id = "token-weight",
    .proves = "every valid token weighs 1/N, or what loss_normalization makes due, in every gradient and ignored tokens "
              "nothing, measured on the numbers: where backward begins, and by probes in the reduced gradients",
    .tier = "default",
    .run = run,
};
