/* experiment: one scenario, from its runs to its verdict.
 *
 *   parallel run, standalone run -> comparison -> (above a screening limit, or deep: both again at the other
 *   rung of the precision ladder) -> checks -> verdict -> diagnosis -> what became of the faults -> as expected?
 *
 * Verdict, the first that applies: deadlock; diverged (oracle fails); violated (another check fails); consistent. */
#include "scenarios/experiment.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/loss_convention.h"
#include "scenarios/check_run.h"
#include "scenarios/compare.h"
#include "scenarios/diagnosis.h"
#include "scenarios/ladder.h"

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
    struct record *record = train_run(&config, *ret_plan, &train, error);
    if (record && record->outcome == MACHINE_STOPPED) {
        record_free(record);
        return NULL;
    }
    return record;
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
    initial_free(initial);
    return ret_pair->standalone != NULL;
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
            .max_param_rel_err = s->max_param_error};
    }
}

static enum verdict verdict_of(const struct result *result)
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

static bool judge(struct result *result, const struct experiment_options *options,
                  const struct check_selection *selection, const struct experiment_plans *plans, struct error *error)
{
    struct comparison *comparison = NULL;
    bool finished = result->parallel->outcome == MACHINE_FINISHED && result->standalone->outcome == MACHINE_FINISHED,
         good = true;
    result->exploded_step = exploded_step(result->parallel, result->standalone);
    if (result->exploded_step >= 0) {
        exploded_cut(result->parallel, result->exploded_step);
        exploded_cut(result->standalone, result->exploded_step);
    }
    if (finished) {
        comparison = comparison_new(result->parallel, result->standalone);
        if (selection->deep || comparison_needs_other(comparison))
            good = run_other_rung(result, options, comparison, error);
    }
    if (good) {
        struct run_config config = result->scenario->config;
        config.train.steps = result->parallel->config.train.steps;
        struct evidence evidence = {&config, result->parallel, result->standalone, result->parallel_other,
                                    result->standalone_other, comparison};
        fill_steps(result, comparison);
        checks_run(&evidence, selection, result);
        result->verdict = verdict_of(result);
        if (result->verdict != VERDICT_CONSISTENT) result->has_diagnosis = diagnose(&evidence, result);
        good = experiment_faults(result, plans, options, error);
    }
    comparison_free(comparison);
    if (good) experiment_expect(result);
    return good;
}

struct result *experiment_run(const struct scenario *scenario, const struct experiment_options *options,
                              struct error *error)
{
    struct check_selection selection;
    if (!check_select(options->checks, &selection, error)) return NULL;
    struct arena *arena = arena_new("result", false);
    struct result *result = arena_zalloc(arena, sizeof *result);
    result->arena = arena;
    result->scenario = scenario;
    struct run_pair pair;
    struct experiment_plans plans;
    bool good = run_both(scenario, options, &scenario->config.precision, &pair, &plans, error);
    result->parallel = pair.parallel;
    result->standalone = pair.standalone;
    good = good && judge(result, options, &selection, &plans, error);
    free_plans(&plans);
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
    arena_free(result->arena);
}
