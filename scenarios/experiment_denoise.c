/* experiment: the workload `denoise`.
 *
 *   ring and one rank, iteration by iteration: e_i = ||x_ring - x_one||_F / ||x_one||_F over all positions
 *   the precision ladder judges (ladder.h): where e_i passes the screen of K = iterations so far x layers
 *   roundings, or with deep checks, both are run again in fp64, and what does not shrink is a mistake. Errors are carried from
 *   iteration to iteration, so the first one that is wrong counts. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/denoise_run.h"
#include "scenarios/check_run.h"
#include "scenarios/context_checks.h"
#include "scenarios/diagnosis.h"
#include "scenarios/experiment.h"
#include "scenarios/facts.h"
#include "scenarios/ladder.h"
#include "sim/coroutine.h"

static struct record *run_one(const struct result *result, const struct experiment_options *options, bool single, const struct precision *precision, struct site_plan *plan,
                              struct error *error)
{
    struct run_config config = result->scenario->config;
    struct train_options train = options->train;
    if (single) config = denoise_single(&config);
    config.precision = *precision;
    train.watch = options->watch;
    struct record *record = denoise_run(&config, plan, &train, error);
    if (record && record->outcome == MACHINE_STOPPED) {
        record_free(record);
        return NULL;
    }
    return record;
}

static struct record *run_anew(const struct result *result, const struct experiment_options *options, bool single, const struct precision *precision, struct error *error)
{
    struct run_config config = single ? denoise_single(&result->scenario->config) : result->scenario->config;
    struct site_plan *plan = scenario_plan(result->scenario, single, layout_ranks(&config.layout), error);
    struct record *record = plan ? run_one(result, options, single, precision, plan, error) : NULL;
    site_plan_free(plan);
    return record;
}

static void compare(const struct record *parallel, const struct record *single, int iteration, double *ret_rel, double *ret_max)
{
    const struct model_config *m = &parallel->config.model;
    enum format storage = run_storage(&parallel->config);
    double difference = 0, norm = 0, largest = 0;
    const struct latent_fact *whole = &single->rank[0].latents.items[iteration];
    for (int r = 0; r < parallel->ranks; r++) {
        const struct latent_fact *part = &parallel->rank[r].latents.items[iteration];
        int64_t rows = part->rows / parallel->config.attention.batch;
        for (int64_t i = 0; i < part->rows; i++) {
            int64_t sequence = parallel->rank[r].replicate * (int64_t)parallel->config.attention.batch + i / (rows ? rows : 1), at = (sequence * m->seq + part->positions[i]) * m->dim;
            for (int64_t c = 0; c < m->dim; c++) {
                double a = format_get(part->values, (size_t)(i * m->dim + c), storage), b = format_get(whole->values, (size_t)(at + c), storage);
                difference += (a - b) * (a - b);
                norm += b * b;
                largest = fmax(largest, fabs(a - b));
            }
        }
    }
    *ret_rel = difference == 0 ? 0 : isfinite(difference) ? sqrt(difference / fmax(norm, 1e-300)) : INFINITY;
    *ret_max = isfinite(difference) ? largest : INFINITY;
}

/* K of the ladder: the lengths of all sums on the way. */
static double terms_of(const struct run_config *config, int iteration)
{
    return (iteration + 1.0) * config->model.layers * ((double)config->model.seq + config->model.dim + config->model.ffn);
}

static void measure(struct result *result, const struct record *parallel, const struct record *single, bool fine)
{
    struct denoise_result *d = &result->denoise;
    for (int i = 0; i < d->iterations; i++) {
        double rel, max_abs;
        compare(parallel, single, i, &rel, &max_abs);
        if (fine) d->rel_fine[i] = rel;
        else d->rel[i] = rel;
        if (!fine) d->max_abs[i] = max_abs;
    }
}

static bool passes_screen(const struct result *result)
{
    const struct denoise_result *d = &result->denoise;
    const struct run_config *config = &result->scenario->config;
    for (int i = 0; i < d->iterations; i++) {
        if (!(d->rel[i] <= ladder_screen(precision_is(&config->precision, FORMAT_FP64) ? FORMAT_FP64 : FORMAT_FP32, (i + 1.0) * config->model.layers))) return false;
    }
    return true;
}

void denoise_oracle(const struct evidence *e, struct check_output *output)
{
    const struct denoise_result *d = e->denoise;
    if (!d || d->iterations == 0) {
        check_skip(output, "the run did not finish");
        return;
    }
    bool fp64 = precision_is(&e->config->precision, FORMAT_FP64), pair = !isnan(d->rel_fine[0]);
    for (int i = 0; i < d->iterations; i++) {
        double terms = terms_of(e->config, i), narrow = fp64 ? d->rel_fine[i] : d->rel[i], wide = fp64 ? d->rel[i] : d->rel_fine[i];
        double value = pair ? wide : d->rel[i], limit = pair ? ladder_limit(narrow, terms) : ladder_screen(fp64 ? FORMAT_FP64 : FORMAT_FP32, (i + 1.0) * e->config->model.layers);
        if (!isfinite(d->rel[i])) limit = ladder_screen(FORMAT_FP32, (i + 1.0) * e->config->model.layers); /* what no number is says nothing of rounding */
        check_value(output, isfinite(d->rel[i]) ? value : d->rel[i], limit);
        if (isfinite(d->rel[i]) && value <= limit) continue;
        struct finding finding = finding_new(NULL, place_at(-1, i, -1));
        finding.expected = 0;
        finding.got = value;
        finding_say(&finding, "after iteration %d the latents differ from one rank's by %.3g, in fp64 by %.3g: no rounding; after the last of %d iterations by %.3g", i + 1, d->rel[i], d->rel_fine[i], d->iterations,
                    d->rel[d->iterations - 1]);
        check_find(output, &finding);
        return; /* all that follows is made from it */
    }
}

static bool repeats_made(const struct result *result, const struct experiment_options *options, struct repeat repeats[2], int *ret_count, struct error *error)
{
    struct experiment_options other = *options;
    const char *backend = coroutine_backend_at(1), *below = experiment_path_below(result->parallel->cpu_path);
    const struct precision *precision = &result->scenario->config.precision;
    other.train.interleave = options->train.interleave + 1;
    other.train.threads = options->train.threads > 1 ? 1 : 2;
    if (backend) other.train.coroutine = !strcmp(backend, result->parallel->coroutine) ? coroutine_backend_at(0) : backend;
    for (*ret_count = 0; *ret_count < (below ? 2 : 1);) {
        struct record *record = run_anew(result, &other, false, precision, error);
        if (!record) return false;
        repeats[(*ret_count)] = (struct repeat){*ret_count ? "another CPU path" : "another order of ready ranks, number of threads and coroutine backend", {record->digest[0], record->digest[1]}};
        ++*ret_count;
        record_free(record);
        other = *options;
        other.train.cpu_path = below;
    }
    return true;
}

static bool judge(struct result *result, const struct experiment_options *options, const struct check_selection *selection, struct experiment_plans *plans, struct error *error)
{
    const struct run_config *config = &result->scenario->config;
    bool finished = facts_finished(result->parallel) && facts_finished(result->standalone);
    struct repeat repeats[2];
    int repeats_count = 0;
    struct denoise_result *d = &result->denoise;
    d->iterations = finished ? config->iterations : 0;
    double **lists[] = {&d->rel, &d->max_abs, &d->rel_fine};
    for (int k = 0; k < 3; k++) {
        *lists[k] = arena_alloc(result->arena, (size_t)(config->iterations + 1) * sizeof(double));
        for (int i = 0; i < config->iterations; i++) (*lists[k])[i] = NAN;
    }
    if (finished) measure(result, result->parallel, result->standalone, false);
    if (finished && (selection->deep || !passes_screen(result))) {
        struct precision other = ladder_other(&config->precision);
        result->parallel_other = run_anew(result, options, false, &other, error);
        result->standalone_other = result->parallel_other ? run_anew(result, options, true, &other, error) : NULL;
        if (!result->standalone_other) return false;
        if (facts_finished(result->parallel_other) && facts_finished(result->standalone_other)) measure(result, result->parallel_other, result->standalone_other, true);
    }
    if (selection->deep && finished && !repeats_made(result, options, repeats, &repeats_count, error)) return false;
    struct evidence evidence = {config, result->parallel, result->standalone, result->parallel_other, result->standalone_other, NULL, repeats_count, repeats, NULL, NULL, d};
    checks_run(&evidence, selection, result);
    result->verdict = experiment_verdict(result);
    if (result->verdict != VERDICT_CONSISTENT) result->has_diagnosis = diagnose(&evidence, result);
    if (!experiment_faults(result, plans, options, error)) return false;
    experiment_expect(result);
    return true;
}

bool experiment_denoise(struct result *result, const struct experiment_options *options, const struct check_selection *selection, struct error *error)
{
    const struct run_config *config = &result->scenario->config;
    struct experiment_plans plans = {scenario_plan(result->scenario, false, layout_ranks(&config->layout), error), NULL};
    if (plans.parallel) plans.standalone = scenario_plan(result->scenario, true, 1, error);
    bool good = plans.standalone != NULL;
    if (good) result->parallel = run_one(result, options, false, &config->precision, plans.parallel, error);
    if (result->parallel) result->standalone = run_one(result, options, true, &config->precision, plans.standalone, error);
    good = result->standalone && judge(result, options, selection, &plans, error);
    site_plan_free(plans.parallel);
    site_plan_free(plans.standalone);
    return good;
}
