/* logged-loss: the loss that is reported is the loss that is optimized, over the right tokens and ranks.
 *
 * On every rank, the figure that would be printed against
 *   what train.loss_normalization prints: the sum over all data ranks and micro-batches of their valid tokens' losses
 *     S times the convention's factor (token_mean: 1/N, so the mean over all valid tokens), and,
 *   where the convention prints what it optimizes, the loss that was optimized: loss.parallel times what multiplies
 *     every gradient afterwards. Where by its design it does not (megatron: a token mean is printed, a mean of means
 *     optimized), and the two differ on these data, that is a warning and no finding.
 * Limit: 1e-9 relative (all of it is fp64), and one rounding of the format in which the convention sends the figure
 * from the last stage to the others. Sites, the first that holds: metrics.loss where the reduced figure was multiplied;
 * loss.token_count_reduce where the print is made with a wrong N; loss.report_broadcast, loss.report_reduce where it
 * does not follow from the ranks' own parts; loss.report for each micro-batch whose part is not as due; else none: a
 * wrong weight or denominator further up is the cause. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/compare.h"
#include "scenarios/ratio.h"

static const double limit = 1e-9;

struct due { double printed, from_parts, optimized; };

/* What S of this micro-batch is multiplied by in the print, given the denominator that was used. */
static double part_due(const struct record *record, const struct rank_record *rank, const struct loss_fact *fact)
{
    const struct loss_convention *convention = loss_convention_of(&record->config);
    const struct count_fact *count = facts_count(rank, fact->step);
    struct factor_numbers numbers = facts_loss_numbers(record, rank, fact);
    if (count) numbers.N = count->valid_global;
    double part = loss_value(convention->logged, &numbers);
    if (convention->logs_counts) return part;
    return fact->denominator > 0 ? part * loss_value(convention->denominator, &numbers) / fact->denominator : 0;
}

static struct due due_of(const struct record *record, int step)
{
    const struct loss_convention *convention = loss_convention_of(&record->config);
    struct due due = {0};
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].losses.count; i++) {
            const struct loss_fact *fact = &record->rank[r].losses.items[i];
            if (fact->step != step || !facts_is_first_reader(record, &record->rank[r])) continue;
            struct factor_numbers numbers = facts_loss_numbers(record, &record->rank[r], fact);
            double sum = 0;
            for (int64_t t = 0; t < fact->token_count; t++) sum += fact->token_loss[t];
            due.printed += sum * loss_value(convention->logged, &numbers);
            due.from_parts += sum * fact->logged;
            due.optimized += fact->backward_loss;
        }
    }
    due.optimized *= facts_grad_scale_due(record, step) / facts_divisor_due(&record->config);
    return due;
}

static double error_of(double got, double due)
{
    return got == due ? 0 : fabs(got - due) / fmax(fabs(due), 1e-300);
}

/* A broadcast rounds its root's copy too. */
static double limit_of(const struct record *record)
{
    return limit + format_traits[loss_convention_of(&record->config)->logged_format].unit_roundoff;
}

/* The figure before it was multiplied for the print. */
static double reduced(const struct report_fact *fact)
{
    return fact->scale != 0 ? fact->logged / fact->scale : fact->logged;
}

static const struct site *site_of(const struct record *record, const struct rank_record *rank, const struct report_fact *fact,
                                  const struct due *due)
{
    if (fact->scale != 1) return &site_metrics_loss;
    if (error_of(reduced(fact), due->from_parts) <= limit_of(record)) return NULL;
    const struct rank_record *last = facts_rank(record, record->config.layout.pp - 1, rank->data_rank);
    const struct report_fact *origin = last ? facts_report(last, fact->step) : NULL;
    bool broadcast = origin && last != rank && error_of(reduced(origin), due->from_parts) <= limit_of(record);
    return broadcast ? &site_loss_report_broadcast : &site_loss_report_reduce;
}

static void describe_ratio(struct finding *finding, const struct record *record, int data_rank, int step, int microbatch,
                           double ratio, char prefer, struct ratio_form *ret_form)
{
    struct ratio_sample sample = {facts_numbers(record, data_rank, step, microbatch), ratio};
    *ret_form = ratio_classify(&sample, 1, prefer, 3, 1e-9);
    snprintf(finding->ratio, sizeof finding->ratio, "%s", ret_form->text);
    finding->ratio_value = ratio;
    finding_pattern(finding, ret_form->text);
}

static void find_report(const struct evidence *e, struct check_output *output, int rank, const struct report_fact *fact,
                        const struct due *due)
{
    const struct record *record = e->parallel;
    const struct rank_record *at = &record->rank[rank];
    const char *printed = loss_convention_of(&record->config)->logged;
    struct finding finding = finding_new(site_of(record, at, fact, due), place_at(rank, fact->step, -1));
    struct ratio_form form;
    describe_ratio(&finding, record, at->data_rank, fact->step, -1, fact->logged / due->printed, 'P', &form);
    finding.expected = due->printed;
    finding.got = fact->logged;
    if (error_of(fact->logged, due->printed) > limit_of(record)) {
        char what[80];
        snprintf(what, sizeof what, "sum of S * %s", printed);
        finding_say(&finding, "rank %d reports a loss of %.9g in step %d where %s is %.9g%s%s%s", rank, fact->logged,
                    fact->step, strcmp(printed, "1/N") ? what : "the mean over all valid tokens", due->printed,
                    form.found ? ": " : "", form.found ? form.text : "", form.found ? " of it" : "");
    } else {
        finding_say(&finding,
                    "rank %d reports a loss of %.9g in step %d, but what backward was called on adds up to %.9g", rank,
                    fact->logged, fact->step, due->optimized);
    }
    check_find(output, &finding);
}

/* N as the rank got it, where the print is made with it. */
static void check_step_count(const struct evidence *e, struct check_output *output, const struct rank_record *rank, int step)
{
    const struct record *record = e->parallel;
    const struct count_fact *count = facts_count(rank, step);
    const char *logged = loss_convention_of(&record->config)->logged;
    double N = facts_tokens(record, step).valid;
    if (!count || !strchr(logged, 'N') || count->valid_global == N) return;
    struct finding finding = finding_new(&site_loss_token_count_reduce, place_at(rank->rank, step, -1));
    finding.expected = N;
    finding.got = count->valid_global;
    finding_say(&finding,
                "rank %d got %.17g as the number of valid tokens in step %d where all data ranks together counted %.17g, and "
                "makes the reported loss with it",
                rank->rank, count->valid_global, step, N);
    check_value(output, error_of(count->valid_global, N), limit);
    check_find(output, &finding);
}

static void check_parts(const struct evidence *e, struct check_output *output, int step)
{
    const struct record *record = e->parallel;
    for (int r = 0; r < record->ranks; r++) {
        check_step_count(e, output, &record->rank[r], step);
        for (int i = 0; i < record->rank[r].losses.count; i++) {
            const struct loss_fact *fact = &record->rank[r].losses.items[i];
            if (fact->step != step) continue;
            double due = part_due(record, &record->rank[r], fact);
            if (error_of(fact->logged, due) <= 1e-12) continue;
            struct finding finding = finding_new(&site_loss_report, place_at(r, step, fact->microbatch));
            struct ratio_form form;
            describe_ratio(&finding, record, record->rank[r].data_rank, step, fact->microbatch, fact->logged / due, 'M', &form);
            finding.expected = due;
            finding.got = fact->logged;
            finding_say(&finding,
                        "rank %d takes the summed loss of micro-batch %d in step %d into the reported loss times %.6g where "
                        "%.6g is due: %s of it",
                        r, fact->microbatch, step, fact->logged, due, form.found ? form.text : "another multiple");
            check_value(output, error_of(fact->logged, due), limit);
            check_find(output, &finding);
        }
    }
}

static void warn(const struct record *record, struct check_output *output, int step, const struct due *due)
{
    const struct loss_convention *convention = loss_convention_of(&record->config);
    char text[400];
    snprintf(text, sizeof text,
             "%s prints the loss with weights %s (%.9g in step %d) but optimizes it with weights %s (%.9g): they differ "
             "because the micro-batches' counts of valid tokens do",
             convention->name, convention->logged, due->printed, step, convention->weight, due->optimized);
    check_warn(output, text);
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    bool same = loss_convention_logs_optimized(loss_convention_of(&record->config)), warned = false;
    for (int step = 0; step < record->config.train.steps; step++) {
        struct due due = due_of(record, step);
        check_parts(e, output, step);
        for (int r = 0; r < record->ranks; r++) {
            const struct report_fact *fact = facts_report(&record->rank[r], step);
            if (!fact) continue;
            double error = error_of(fact->logged, due.printed), most = limit_of(record);
            if (same) error = fmax(error, error_of(fact->logged, due.optimized));
            else if (!warned && error_of(due.printed, due.optimized) > limit) {
                warn(record, output, step, &due);
                warned = true;
            }
            check_value(output, error, most);
            if (!(error <= most)) find_report(e, output, r, fact, &due);
        }
    }
}

const struct check check_logged_loss = {
    .id = "logged-loss",
    .proves = "the loss that is reported is the mean over all valid tokens of the step (or what loss_normalization "
              "prints), on every rank, and is the loss that is optimized",
    .tier = "default",
    .run = run,
};
