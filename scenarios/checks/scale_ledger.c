/* scale-ledger: the product of all factors that were applied to a contribution is the one due: 1/N, or what
 * train.loss_normalization says.
 *
 * Each factor notes the number that it really used. Held against what is due one by one, and as a product
 *     compensation * scale * repeats / denominator / divisor * grad_scale = weight due
 * for every (data rank, micro-batch), and against the scale that the gradient's ledger carries in the end: a
 * product that differs from it says that something scaled the gradient without being a factor.
 * And what multiplies the gradient of a micro-batch's auxiliary losses (loss_auxiliary_seed).
 * Limit: 1e-9 relative. Sites: the factor that is not as due; moe.aux where auxiliary losses do not count at all. */
#include <math.h>
#include <stdio.h>

#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/loss_factors.h"
#include "scenarios/routing_due.h"
#include "scenarios/unit_contribution.h"

static const double limit = 1e-9;

static void check_loss(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                       const struct loss_fact *fact, const struct ratio_form forms[LOSS_FACTORS])
{
    const struct record *record = e->parallel;
    struct factor_numbers numbers = facts_loss_numbers(record, rank, fact);
    double due = loss_seed(loss_convention_of(&record->config), &numbers);
    check_value(output, fabs(fact->compensation * fact->scale * fact->repeats / fact->denominator / due - 1), limit);
    for (int factor = 0; factor < LOSS_FACTOR_UNDECLARED; factor++) {
        double ratio = loss_factor_ratio(record, rank, fact, (enum loss_factor)factor);
        if (loss_factor_is_due(ratio, (enum loss_factor)factor, record)) continue;
        struct finding finding = finding_new(loss_factor_site((enum loss_factor)factor),
                                             place_at(rank->rank, fact->step, fact->microbatch));
        finding.expected = 1;
        finding.got = ratio;
        loss_factor_describe(&finding, record, fact, (enum loss_factor)factor, ratio, &forms[factor]);
        check_find(output, &finding);
    }
}

static void check_divisor(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                          const struct factor_fact *fact)
{
    const struct record *record = e->parallel;
    double due = facts_unit_divisor_due(&record->config, fact->unit);
    check_value(output, fabs(due / fact->value - 1), limit);
    if (fact->value == due) return;
    struct ratio_sample sample = {facts_numbers(record, rank->data_rank, fact->step, -1), due / fact->value};
    struct ratio_form form = ratio_classify(&sample, 1, 'D', 3, 1e-12);
    int microbatch = record->config.layout.sync == SYNC_EACH_MICROBATCH ? fact->microbatch : -1; /* else once a step */
    struct finding finding = finding_new(fact->site,
        place_at_unit(&record->config, rank->rank, fact->step, microbatch, fact->unit));
    finding.expected = due;
    finding.got = fact->value;
    snprintf(finding.ratio, sizeof finding.ratio, "%s", form.text);
    finding.ratio_value = sample.value;
    finding_pattern(&finding, form.text);
    char name[32];
    unit_name(&record->config.model, fact->unit, name);
    finding_say(
        &finding,
        "rank %d divides the reduced gradient of %s in step %d by %.6g where %.6g is due (%s over %d data ranks): it "
        "is %s of what it must be",
        rank->rank, name, fact->step, fact->value, due,
        record->config.layout.reduce_op == FSDP_REDUCE_AVG ? "an average" : "a sum",
        layout_data_ranks(&record->config.layout), form.found ? form.text : "another multiple");
    check_find(output, &finding);
}

/* After the last reduction: N as the rank got it, and the factor that it makes. */
static void check_grad_scale(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                             const struct factor_fact *fact)
{
    const struct record *record = e->parallel;
    const struct loss_convention *convention = loss_convention_of(&record->config);
    struct factor_numbers numbers = loss_numbers_due(record, fact->step, 0);
    double due = loss_value(convention->grad_scale, &numbers);
    numbers.N = facts_count_at_end(record, rank, fact->step);
    double from_count = loss_value(convention->grad_scale, &numbers);
    check_value(output, fabs(fact->value / due - 1), limit);
    if (fabs(fact->value / due - 1) <= limit) return;
    bool count = fabs(from_count / due - 1) > limit && fabs(fact->value / from_count - 1) <= limit;
    struct finding finding = finding_new(count ? &site_loss_token_count_reduce : &site_pp_grad_scale,
                                         place_at_unit(&record->config, rank->rank, fact->step, -1, fact->unit));
    struct ratio_sample sample = {facts_numbers(record, rank->data_rank, fact->step, -1), fact->value / due};
    struct ratio_form form = ratio_classify(&sample, 1, 'M', 3, 1e-12);
    finding.expected = due;
    finding.got = fact->value;
    snprintf(finding.ratio, sizeof finding.ratio, "%s", form.text);
    finding.ratio_value = sample.value;
    finding_pattern(&finding, form.text);
    char name[32];
    unit_name(&record->config.model, fact->unit, name);
    if (count) {
        finding_say(&finding,
                    "rank %d got %.17g as the number of valid tokens at the end of step %d where all data ranks together "
                    "counted %.17g: its gradients are %.6g times what they must be",
                    rank->rank, numbers.N, fact->step, facts_tokens(record, fact->step).valid, sample.value);
    } else {
        finding_say(&finding,
                    "rank %d multiplies the gradient of %s in step %d by %.6g after its reduction where %s = %.6g is due: "
                    "it is %s of what it must be",
                    rank->rank, name, fact->step, fact->value, convention->grad_scale, due,
                    form.found ? form.text : "another multiple");
    }
    check_find(output, &finding);
}

static bool is_always_one(const struct site *site)
{
    return site == &site_pp_grad_accumulate || site == &site_dp_grad_accumulate || site == &site_hsdp_grad_divisor ||
           site == &site_dp_grad_scale;
}

/* The gradient so far was scaled at a micro-batch: due is never. */
static void check_accumulate(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                             const struct factor_fact *fact)
{
    const struct record *record = e->parallel;
    struct finding finding =
        finding_new(fact->site, place_at_unit(&record->config, rank->rank, fact->step, fact->microbatch, fact->unit));
    struct ratio_sample sample = {facts_numbers(record, rank->data_rank, fact->step, -1), fact->value};
    struct ratio_form form = ratio_classify(&sample, 1, fact->site == &site_pp_grad_accumulate ? 'M' : 'D', 2, 1e-12);
    finding.expected = 1;
    finding.got = fact->value;
    snprintf(finding.ratio, sizeof finding.ratio, "%s", form.text);
    finding.ratio_value = fact->value;
    finding_pattern(&finding, form.text);
    char name[32];
    unit_name(&record->config.model, fact->unit, name);
    bool after = fact->site == &site_hsdp_grad_divisor || fact->site == &site_dp_grad_scale;
    if (after) {
        finding_say(&finding, "rank %d multiplies the gradient of %s in step %d by %s (%.6g) after its reduction, where nothing is due",
                    rank->rank, name, fact->step, form.found ? form.text : "a factor", fact->value);
    } else finding_say(&finding,
                "rank %d multiplies the gradient of %s so far by %s after micro-batch %d in step %d: what went in earlier is "
                "scaled again and again",
                rank->rank, name, form.found ? form.text : "a factor", fact->microbatch, fact->step);
    check_value(output, fabs(fact->value - 1), limit);
    check_find(output, &finding);
}

/* The loss scale must leave the gradient as it came in. */
static void check_unscale(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                          const struct scale_fact *fact)
{
    double left = facts_unscale(rank, fact->step);
    check_value(output, fabs(left - 1), limit);
    if (fabs(left - 1) <= limit) return;
    struct finding finding = finding_new(&site_amp_unscale, place_at(rank->rank, fact->step, -1));
    struct ratio_sample sample = {facts_numbers(e->parallel, rank->data_rank, fact->step, -1), left};
    struct ratio_form form = ratio_classify(&sample, 1, 'M', 2, 1e-12);
    finding.expected = fact->scale;
    finding.got = fact->unscaled_by;
    finding.ratio_value = left;
    snprintf(finding.ratio, sizeof finding.ratio, "%s", form.text);
    finding_pattern(&finding, fact->unscaled_by == 1 ? "scale-left" : fact->scale == 1 ? "scale-never-applied" : form.text);
    finding_say(&finding, "rank %d multiplies the loss of step %d by %g and divides its gradients by %g", rank->rank, fact->step,
                fact->scale, fact->unscaled_by);
    check_find(output, &finding);
}

/* The ledger's own scale against the product of the declared factors. */
static void check_ledger(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                         const struct gradient_fact *fact)
{
    const struct record *record = e->parallel;
    double divisor = facts_unit_divisor_due(&record->config, fact->unit);
    int copies = facts_copies_due(&record->config, fact->unit);
    double after = facts_grad_scale(record, rank, fact->step, fact->unit);
    int D = layout_data_ranks(&record->config.layout), M = record->config.layout.microbatches;
    for (int i = 0; i < fact->ledger.count; i++) {
        const struct ledger_term *term = &fact->ledger.terms[i];
        if (term->origin.step != fact->step) continue; /* contribution says so */
        int data_rank = term->origin.rank, microbatch = term->origin.microbatch;
        if (data_rank < 0 || data_rank >= D || microbatch < 0 || microbatch >= M) continue;
        double due = loss_weight_due(record, fact->step, data_rank, microbatch);
        check_value(output, fabs(term->scale * copies / due - 1), limit);
        const struct rank_record *last = facts_rank(record, record->config.layout.pp - 1, term->origin.rank);
        const struct loss_fact *loss = last ? facts_loss(last, term->origin.step, term->origin.microbatch) : NULL;
        if (!loss) continue;
        double declared = loss->seed / divisor * after;
        if (fabs(term->scale - declared) <= limit * fabs(declared) ||
            !facts_was_reduced(rank, fact->step, fact->unit) ||
            unit_contribution_was_accumulated(record, rank, fact->step, fact->unit) ||
            !facts_divisors_are_due(record, rank, fact->step, fact->unit))
            continue;
        struct finding finding = finding_new(unit_contribution_reduction(record, rank, fact->step, fact->unit),
            place_at_unit(&record->config, rank->rank, fact->step, -1, fact->unit));
        finding.expected = declared;
        finding.got = term->scale;
        struct ratio_sample sample = {facts_numbers(record, rank->data_rank, fact->step, -1), term->scale / declared};
        struct ratio_form form = ratio_classify(&sample, 1, 'D', 2, limit);
        snprintf(finding.ratio, sizeof finding.ratio, "%s", form.text);
        finding.ratio_value = sample.value;
        finding_pattern(&finding, form.text);
        char name[32];
        unit_name(&record->config.model, fact->unit, name);
        finding_say(&finding,
                    "in the gradient of %s on rank %d in step %d, micro-batch %d of data rank %d weighs %.6g where the "
                    "factors give %.6g: its reduction scaled it",
                    name, rank->rank, fact->step, term->origin.microbatch, term->origin.rank, term->scale, declared);
        check_find(output, &finding);
        return;
    }
}

static void check_auxiliary(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact,
                            const bool *padding)
{
    const struct record *record = e->parallel;
    const struct scale_fact *scale = facts_scale(rank, fact->step);
    (void)padding;
    for (int c = 0; fact->backward && fact->aux_scale && c < fact->cells; c++) {
        int64_t sequence = routing_sequence(record, rank, fact, fact->cell_first[c]);
        double due = loss_auxiliary_seed(record, fact->step, loss_cut_batch(&record->config, sequence)) * (scale ? scale->scale : 1), got = fact->aux_scale[c];
        if (got == 0 && !facts_finished(record)) continue; /* it may not have come to it */
        check_value(output, fabs(got / due - 1), limit);
        if (fabs(got - due) <= limit * fabs(due)) continue;
        struct ratio_sample sample = {facts_numbers(record, rank->data_rank, fact->step, -1), got / due};
        struct ratio_form form = ratio_classify(&sample, 1, 'M', 2, limit);
        double tokens = loss_auxiliary_tokens(record, fact->step, loss_cut_batch(&record->config, sequence));
        bool without = tokens > 1 && fabs(got * tokens - due) <= limit * fabs(due);
        routing_find(e, output, got == 0 ? &site_moe_aux : &site_moe_aux_scale, rank, fact, got == 0 ? "0" : without ? "without-tokens" : form.found ? form.text : "altered", due, got,
                     "the gradient of the auxiliary losses is multiplied by %.9g where %.9g is due%s%s%s", got, due, without ? ": its tokens are not in it" : form.found ? ": it is " : "",
                     without ? "" : form.text, form.found && !without ? " of it" : "");
        return;
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
            if (facts_scale(rank, step)) check_unscale(e, output, rank, facts_scale(rank, step));
            for (int i = 0; i < rank->losses.count; i++) {
                if (rank->losses.items[i].step == step) check_loss(e, output, rank, &rank->losses.items[i], forms);
            }
            for (int i = 0; i < rank->factors.count; i++) {
                const struct factor_fact *fact = &rank->factors.items[i];
                if (fact->step == step && fact->site == facts_divisor_site(&record->config, fact->unit) && fact->piece == 0)
                    check_divisor(e, output, rank, fact);
                if (fact->step == step && fact->site == &site_pp_grad_scale) check_grad_scale(e, output, rank, fact);
                if (fact->step == step && is_always_one(fact->site))
                    check_accumulate(e, output, rank, fact);
            }
            for (int i = 0; i < rank->gradients.count; i++) {
                const struct gradient_fact *fact = &rank->gradients.items[i];
                if (fact->step == step && fact->stage == GRADIENT_REDUCED) check_ledger(e, output, rank, fact);
            }
        }
    }
    routing_each(e, output, check_auxiliary);
}

const struct check check_scale_ledger = {
    .id = "scale-ledger",
    .proves = "the product of all factors applied to a gradient contribution equals the one due: compensation x scale "
              "/ denominator / divisor x grad_scale = 1/N, or what loss_normalization makes due, for every micro-batch and parameter",
    .tier = "default",
    .run = run,
};
