/* logged-loss: the loss that is reported is the loss that is optimized, over the right tokens and ranks.
 *
 * On every rank, the figure that would be printed against
 *   the token mean: sum of the valid tokens' losses over all data ranks and micro-batches / N, and
 *   the loss that was optimized: loss.parallel.
 * Limit: 1e-9 relative (all of it is fp64). Site: loss.report_reduce where the figure does not follow from the ranks'
 * own sums and denominators either; else none: a wrong weight or denominator further up is the cause. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/compare.h"
#include "scenarios/ratio.h"

static const double limit = 1e-9;

struct due { double token_mean, from_denominators, optimized; };

static struct due due_of(const struct record *record, int step)
{
    struct due due = {0};
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].losses.count; i++) {
            const struct loss_fact *fact = &record->rank[r].losses.items[i];
            if (fact->step != step) continue;
            double sum = 0;
            for (int64_t t = 0; t < fact->token_count; t++) sum += fact->token_loss[t];
            due.token_mean += sum;
            due.from_denominators += sum / fact->denominator;
            due.optimized += fact->backward_loss;
        }
    }
    due.token_mean /= facts_tokens(record, step).valid;
    due.optimized /= facts_divisor_due(&record->config);
    return due;
}

static double error_of(double got, double due)
{
    return got == due ? 0 : fabs(got - due) / fmax(fabs(due), 1e-300);
}

static void find_report(const struct evidence *e, struct check_output *output, int rank, int step, double logged,
                        const struct due *due)
{
    const struct record *record = e->parallel;
    bool follows = error_of(logged, due->from_denominators) <= limit;
    struct finding finding = finding_new(follows ? NULL : &site_loss_report_reduce, place_at(rank, step, -1));
    struct ratio_sample sample = {facts_numbers(record, record->rank[rank].data_rank, step, -1),
                                  logged / due->token_mean};
    struct ratio_form form = ratio_classify(&sample, 1, 'P', 3, 1e-9);
    finding.expected = due->token_mean;
    finding.got = logged;
    snprintf(finding.ratio, sizeof finding.ratio, "%s", form.text);
    finding.ratio_value = sample.value;
    finding_pattern(&finding, form.text);
    if (error_of(logged, due->token_mean) > limit) {
        finding_say(&finding,
                    "rank %d reports a loss of %.9g in step %d where the mean over all valid tokens is %.9g%s%s", rank,
                    logged, step, due->token_mean, form.found ? ": " : "", form.found ? form.text : "");
        if (form.found) {
            size_t used = strlen(finding.text);
            snprintf(finding.text + used, sizeof finding.text - used, " of it");
        }
    } else {
        finding_say(&finding,
                    "rank %d reports a loss of %.9g in step %d, but what backward was called on adds up to %.9g", rank,
                    logged, step, due->optimized);
    }
    check_find(output, &finding);
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    for (int step = 0; step < record->config.train.steps; step++) {
        struct due due = due_of(record, step);
        for (int r = 0; r < record->ranks; r++) {
            const struct report_fact *fact = facts_report(&record->rank[r], step);
            if (!fact) continue;
            double error = fmax(error_of(fact->logged, due.token_mean), error_of(fact->logged, due.optimized));
            check_value(output, error, limit);
            if (!(error <= limit)) find_report(e, output, r, step, fact->logged, &due);
        }
    }
}

const struct check check_logged_loss = {
    .id = "logged-loss",
    .proves = "the loss that is reported is the mean over all valid tokens of the step, on every rank, and is the loss "
              "that is optimized",
    .tier = "default",
    .run = run,
};
