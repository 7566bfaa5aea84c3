/* experiment: one scenario, from its runs to its verdict.
 *
 *   parallel run, standalone run -> comparison -> (above a screening limit, or deep: both again at the other
 *   rung of the precision ladder) -> checks -> verdict -> diagnosis -> what became of the faults -> as expected?
 *
 * Verdict, the first that applies: deadlock; diverged (oracle fails); violated (another check fails); consistent. */
#include "scenarios/experiment.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/loss_convention.h"
#include "scenarios/check_run.h"
#include "scenarios/compare.h"
#include "scenarios/diagnosis.h"
#include "scenarios/ladder.h"
#include "scenarios/routing_follow.h"
#include "scenarios/variations.h"
#include "sim/coroutine.h"

struct run_pair { struct record *parallel, *standalone; };

/* One run at one format; NULL where it could not be made or was stopped. plan is the caller's to free. */
static struct record *run_one(const struct scenario *scenario, const struct experiment_options *options,
                              bool standalone, const struct precision *precision, const struct initial *initial,
                              struct site_plan **ret_plan, struct error *error)
{
    struct run_config config = scenario->config;
    config.precision = *precision;
    config.loss_cut = loss_cut_of(&config);
    if (standalone) config.layout = layout_standalone(&config.model);
    *ret_plan = scenario_plan(scenario, standalone, layout_ranks(&config.layout), error);
    if (error_is_set(error)) return NULL;
    struct train_options train = options->train;
    train.initial = initial;
    train.watch = options->watch;
    struct record *record = train_run(&config, *ret_plan, &train, error);
    if (record && record->outcome == MACHINE_STOPPED) {
        record_free(record);
        return NULL;
    }
    return record;
}

/* ---- updates that loss scaling leaves out ---- */

static const struct scale_fact *scale_at(const struct record *record, int step)
{
    return facts_scale(&record->rank[0], step);
}

/* The first step in which one run leaves its update out and the other does not; -1: none. */
static int decision_differs(const struct run_pair *pair)
{
    for (int step = 0; step < pair->parallel->config.train.steps; step++) {
        const struct scale_fact *a = scale_at(pair->parallel, step), *b = scale_at(pair->standalone, step);
        if (a && b && a->skipped != b->skipped) return step;
    }
    return -1;
}

/* Whether one run's overflow is near where the other's numbers are: what is cut into micro-batches or not makes sums of
 * different length, so that one may pass the largest number of a format and the other not. Its reduced gradient, as it
 * was before the scale was taken out, is then within 2^8 of that number. */
static bool is_near_tie(const struct run_pair *pair, int step)
{
    const struct scale_fact *a = scale_at(pair->parallel, step), *b = scale_at(pair->standalone, step);
    const struct scale_fact *finite = a->skipped ? b : a;
    double largest = ldexp(1, format_traits[pair->parallel->config.precision.compute].exponent_max);
    return finite->largest * finite->scale * 256 >= largest;
}

/* Every rank leaves out what it must by what the ranks found themselves. */
static bool decides_by_rule(const struct record *record)
{
    for (int step = 0; step < record->config.train.steps; step++) {
        bool found = false;
        for (int r = 0; r < record->ranks; r++) {
            const struct scale_fact *fact = facts_scale(&record->rank[r], step);
            found = found || (fact && fact->found_here);
        }
        for (int r = 0; r < record->ranks; r++) {
            const struct scale_fact *fact = facts_scale(&record->rank[r], step);
            if (fact && fact->skipped != found) return false;
        }
    }
    return true;
}

static bool reference_again(const struct scenario *scenario, const struct experiment_options *options, const struct precision *precision,
                            const struct initial *initial, struct run_pair *pair, struct experiment_plans *plans, struct error *error)
{
    record_free(pair->standalone);
    site_plan_free(plans->standalone);
    pair->standalone = run_one(scenario, options, true, precision, initial, &plans->standalone, error);
    return pair->standalone != NULL;
}

/* Left-out updates and choices of experts are discrete decisions: where the runs differ in one by a near tie, the reference
 * is made again with the parallel run's decisions, so that what follows can be compared. The choices come first: they
 * change gradients. */
static bool take_over_decisions(const struct scenario *scenario, const struct experiment_options *options,
                                const struct precision *precision, const struct initial *initial, struct run_pair *pair,
                                struct experiment_plans *plans, struct error *error)
{
    struct experiment_options again = *options;
    struct arena *arena = arena_new("decisions taken over", false);
    bool good = true;
    if (routing_difference_of(pair->parallel, pair->standalone).differ > 0 && routing_keeps_rules(pair->standalone)) {
        again.train.follow = routing_choices_of(pair->parallel, arena);
        good = reference_again(scenario, &again, precision, initial, pair, plans, error);
    }
    int step = good && facts_finished(pair->standalone) ? decision_differs(pair) : -1, steps = pair->parallel->config.train.steps;
    if (step >= 0 && decides_by_rule(pair->parallel) && is_near_tie(pair, step)) {
        bool *left_out = arena_zalloc(arena, (size_t)steps * sizeof *left_out);
        for (int s = 0; s < steps; s++) left_out[s] = scale_at(pair->parallel, s) && scale_at(pair->parallel, s)->skipped;
        again.train.left_out = left_out;
        good = reference_again(scenario, &again, precision, initial, pair, plans, error);
    }
    arena_free(arena);
    return good;
}

static bool run_both(const struct scenario *scenario, const struct experiment_options *options, const struct precision *precision,
                     struct run_pair *ret_pair, struct experiment_plans *ret_plans, struct error *error)
{
    *ret_pair = (struct run_pair){0};
    *ret_plans = (struct experiment_plans){0};
    struct run_config config = scenario->config;
    config.precision = *precision;
    struct initial *initial = initial_new(&config, error);
    if (!initial) return false;
    ret_pair->parallel = run_one(scenario, options, false, precision, initial, &ret_plans->parallel, error);
    if (ret_pair->parallel)
        ret_pair->standalone = run_one(scenario, options, true, precision, initial, &ret_plans->standalone, error);
    bool good = ret_pair->standalone != NULL;
    if (good && facts_finished(ret_pair->parallel) && facts_finished(ret_pair->standalone))
        good = take_over_decisions(scenario, options, precision, initial, ret_pair, ret_plans, error);
    initial_free(initial);
    return good;
}

static void free_plans(struct experiment_plans *plans)
{
    site_plan_free(plans->parallel);
    site_plan_free(plans->standalone);
}

static bool run_other_rung(struct result *result, const struct experiment_options *options,
                           struct comparison *comparison, struct error *error)
{
    struct run_pair pair;
    struct experiment_plans plans;
    struct precision other = ladder_other(&result->scenario->config.precision);
    bool good = run_both(result->scenario, options, &other, &pair, &plans, error);
    free_plans(&plans);
    result->parallel_other = pair.parallel;
    result->standalone_other = pair.standalone;
    if (!good) return false;
    bool finished = pair.parallel->outcome == MACHINE_FINISHED && pair.standalone->outcome == MACHINE_FINISHED;
    if (result->exploded_step >= 0) {
        exploded_cut(pair.parallel, result->exploded_step);
        exploded_cut(pair.standalone, result->exploded_step);
    }
    if (finished) comparison_add_other(comparison, pair.parallel, pair.standalone);
    return true;
}

static double relative_error(double a, double b)
{
    return a == b ? 0 : fabs(a - b) / fmax(fabs(b), 1e-300);
}

static void fill_steps(struct result *result, const struct comparison *c)
{
    if (!c) return;
    result->steps_count = c->steps;
    result->steps = arena_zalloc(result->arena, (size_t)c->steps * sizeof *result->steps);
    for (int i = 0; i < c->steps; i++) {
        const struct comparison_step *s = &c->step[i];
        result->steps[i] = (struct step_result){
            .step = i, .parallel = s->loss_parallel, .logged = s->loss_logged, .standalone = s->loss_standalone,
            .rel_err = relative_error(s->loss_parallel, s->loss_standalone), .norm_parallel = s->norm_parallel,
            .norm_standalone = s->norm_standalone, .norm_rel_err = relative_error(s->norm_parallel, s->norm_standalone),
            .valid_tokens = record_valid_tokens_due(c->parallel, i), .max_grad_rel_err = s->max_gradient_error,
            .max_param_rel_err = s->max_param_error,
            .auxiliary_parallel = facts_auxiliary(c->parallel, i), .auxiliary_standalone = facts_auxiliary(c->standalone, i)};
    }
}

enum verdict experiment_verdict(const struct result *result)
{
    if (result->parallel->outcome == MACHINE_DEADLOCK) return VERDICT_DEADLOCK;
    enum verdict verdict = VERDICT_CONSISTENT;
    for (int i = 0; i < result->checks_count; i++) {
        if (result->checks[i].status != CHECK_FAIL) continue;
        if (!strcmp(result->checks[i].id, "oracle")) return VERDICT_DIVERGED;
        verdict = VERDICT_VIOLATED;
    }
    return verdict;
}

static double wall_s(const struct record *record)
{
    return record ? record->wall_s : 0;
}

const char *experiment_path_below(const char *path)
{
    return !strcmp(path, "avx512") ? "avx2" : !strcmp(path, "avx2") || !strcmp(path, "neon") ? "plain" : NULL;
}

static bool repeat_run(const struct result *result, const struct experiment_options *options, const char *what,
                       struct repeat *ret_repeat, struct error *error)
{
    struct site_plan *plan = NULL;
    struct record *record = run_one(result->scenario, options, false, &result->scenario->config.precision, NULL, &plan, error);
    site_plan_free(plan);
    if (!record) return false;
    *ret_repeat = (struct repeat){what, {record->digest[0], record->digest[1]}};
    record_free(record);
    return true;
}

/* The parallel run once more, with all that must not matter changed. */
static bool run_repeats(const struct result *result, const struct experiment_options *options, struct repeat repeats[2],
                        int *ret_count, struct error *error)
{
    struct experiment_options other = *options;
    const char *backend = coroutine_backend_at(1), *below = experiment_path_below(result->parallel->cpu_path);
    other.train.interleave = options->train.interleave + 1;
    other.train.threads = options->train.threads > 1 ? 1 : 2;
    if (backend) other.train.coroutine = !strcmp(backend, result->parallel->coroutine) ? coroutine_backend_at(0) : backend;
    *ret_count = 0;
    if (!repeat_run(result, &other, "another order of ready ranks, number of threads and coroutine backend", &repeats[(*ret_count)++], error))
        return false;
    if (!below || strcmp(result->parallel->gemm, "fixed") != 0) return true;
    other = *options;
    other.train.cpu_path = below;
    return repeat_run(result, &other, "another CPU path", &repeats[(*ret_count)++], error);
}

/* Do the runs differ in what they compute forward, beyond rounding? */
static bool forward_differs(const struct comparison *c)
{
    int cells = c->steps * c->units * c->sequences;
    for (int i = 0; i < cells; i++) {
        if (c->forward[i].wrong) return true;
    }
    return false;
}

static bool needs_variations(const struct check_selection *selection, const struct comparison *comparison)
{
    bool asked = false;
    for (int i = 0; i < check_count(); i++) {
        bool is_one = !strcmp(check_at(i)->id, "batch-cut") || !strcmp(check_at(i)->id, "influence");
        asked = asked || (is_one && selection->taken[i]);
    }
    return asked && (selection->deep || selection->listed || forward_differs(comparison));
}

static bool judge(struct result *result, const struct experiment_options *options,
                  const struct check_selection *selection, const struct experiment_plans *plans, struct error *error)
{
    struct comparison *comparison = NULL;
    bool finished = result->parallel->outcome == MACHINE_FINISHED && result->standalone->outcome == MACHINE_FINISHED,
         good = true;
    result->exploded_step = exploded_step(result->parallel, result->standalone);
    if (result->exploded_step >= 0) {
        snprintf(result->warnings[result->warnings_count++], WARNING_TEXT,
                 "the numbers of both runs are not finite from step %d on: it and the steps after it are not compared", result->exploded_step);
        exploded_cut(result->parallel, result->exploded_step);
        exploded_cut(result->standalone, result->exploded_step);
    }
    if (finished) {
        comparison = comparison_new(result->parallel, result->standalone);
        bool chose_otherwise = routing_difference_of(result->parallel, result->standalone).differ > 0;
        if (selection->deep || chose_otherwise || comparison_needs_other(comparison))
            good = run_other_rung(result, options, comparison, error);
    }
    struct repeat repeats[2];
    int repeats_count = 0;
    if (good && selection->deep && finished) good = run_repeats(result, options, repeats, &repeats_count, error);
    struct variations *variations = NULL;
    if (good && finished && needs_variations(selection, comparison)) {
        variations = variations_new(result->scenario, options, error);
        good = variations != NULL;
    }
    if (good) {
        struct run_config config = result->scenario->config;
        config.train.steps = result->parallel->config.train.steps;
        struct evidence evidence = {&config, result->parallel, result->standalone, result->parallel_other,
                                    result->standalone_other, comparison, repeats_count, repeats, variations, NULL, NULL};
        fill_steps(result, comparison);
        checks_run(&evidence, selection, result);
        result->verdict = experiment_verdict(result);
        if (result->verdict != VERDICT_CONSISTENT)
            result->has_diagnosis = diagnose_reference(&evidence, selection, result) || diagnose(&evidence, result);
        good = experiment_faults(result, plans, options, error);
    }
    comparison_free(comparison);
    variations_free(variations);
    if (good) experiment_expect(result);
    return good;
}

static bool run_training(struct result *result, const struct experiment_options *options, const struct check_selection *selection, struct error *error)
{
    struct run_pair pair;
    struct experiment_plans plans;
    bool good = run_both(result->scenario, options, &result->scenario->config.precision, &pair, &plans, error);
    result->parallel = pair.parallel;
    result->standalone = pair.standalone;
    good = good && judge(result, options, selection, &plans, error);
    free_plans(&plans);
    return good;
}

struct result *experiment_run(const struct scenario *scenario, const struct experiment_options *given,
                              struct error *error)
{
    struct check_selection selection;
    if (!check_select(given->checks, &selection, error)) return NULL;
    struct experiment_options watched = *given, *options = &watched;
    watched.watch = given->watch || selection.deep || scenario->faults_count > 0;
    struct arena *arena = arena_new("result", false);
    struct result *result = arena_zalloc(arena, sizeof *result);
    result->arena = arena;
    result->scenario = scenario;
    result->exploded_step = -1;
    bool good = scenario->config.workload == WORKLOAD_ATTENTION ? experiment_attention(result, options, &selection, error)
                : scenario->config.workload == WORKLOAD_DENOISE ? experiment_denoise(result, options, &selection, error)
                                                                : run_training(result, options, &selection, error);
    if (!good) {
        result_free(result);
        return NULL;
    }
    result->wall_s += wall_s(result->parallel) + wall_s(result->standalone) + wall_s(result->parallel_other) +
                      wall_s(result->standalone_other);
    return result;
}

void result_free(struct result *result)
{
    if (!result) return;
    record_free(result->parallel);
    record_free(result->standalone);
    record_free(result->parallel_other);
    record_free(result->standalone_other);
    experiment_attention_free(&result->context);
    arena_free(result->arena);
}
