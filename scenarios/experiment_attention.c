/* experiment: the workload `attention`.
 *
 *   inputs -> parallel run; reference in fp64; one rank at the scenario's own precision -> comparison
 *          -> (something is wrong, or deep: the parallel run in fp64, variations) -> checks -> verdict -> diagnosis
 * The reference is made apart from the program (model/attention_reference.c), so that faults are in the parallel run alone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/attention_run.h"
#include "scenarios/check_run.h"
#include "scenarios/context_compare.h"
#include "scenarios/context_inference.h"
#include "scenarios/context_variations.h"
#include "scenarios/diagnosis.h"
#include "scenarios/experiment.h"
#include "scenarios/facts.h"
#include "sim/coroutine.h"

struct attention_source { const struct scenario *scenario; const struct experiment_options *options; };

/* With the scenario's faults; its plan is made anew, so that hits count for the run itself alone. */
static struct record *run_with_faults(void *context, const struct run_config *config, const struct attention_inputs_data *inputs, struct error *error)
{
    const struct attention_source *source = context;
    struct site_plan *plan = scenario_plan(source->scenario, false, layout_ranks(&config->layout), error);
    struct record *record = plan ? attention_run(config, plan, &source->options->train, inputs, error) : NULL;
    site_plan_free(plan);
    return record;
}

static bool was_stopped(const struct record *record)
{
    return record && record->outcome == MACHINE_STOPPED;
}

static bool run_all(struct result *result, const struct experiment_options *options, struct site_plan *plan, struct error *error)
{
    const struct run_config *config = &result->scenario->config;
    struct context_result *context = &result->context;
    struct train_options train = options->train;
    train.watch = options->watch;
    context->inputs = attention_inputs_new(config);
    result->parallel = attention_run(config, plan, &train, context->inputs, error);
    if (!result->parallel || was_stopped(result->parallel)) return false;
    result->standalone = attention_standalone(config, &train, context->inputs, error);
    if (!result->standalone) return false;
    struct run_config single = attention_single(config);
    context->single = attention_run(&single, NULL, &train, context->inputs, error);
    return context->single && !was_stopped(context->single);
}

static bool run_fine(struct result *result, const struct experiment_options *options, struct error *error)
{
    struct attention_source source = {result->scenario, options};
    struct run_config config = result->scenario->config;
    config.precision = precision_of(FORMAT_FP64);
    if (precision_is(&result->scenario->config.precision, FORMAT_FP64)) return true;
    result->parallel_other = run_with_faults(&source, &config, result->context.inputs, error);
    if (!result->parallel_other || was_stopped(result->parallel_other)) return false;
    if (facts_finished(result->parallel_other))
        result->context.fine = context_comparison_new(result->parallel_other, result->standalone, NULL);
    return true;
}

static bool repeat_run(const struct result *result, const struct experiment_options *options, const char *what, struct repeat *ret, struct error *error)
{
    struct attention_source source = {result->scenario, options};
    struct record *record = run_with_faults(&source, &result->scenario->config, result->context.inputs, error);
    if (!record || was_stopped(record)) {
        record_free(record);
        return false;
    }
    *ret = (struct repeat){what, {record->digest[0], record->digest[1]}};
    record_free(record);
    return true;
}

static bool run_repeats(const struct result *result, const struct experiment_options *options, struct repeat repeats[2], int *ret_count, struct error *error)
{
    struct experiment_options other = *options;
    const char *backend = coroutine_backend_at(1), *below = experiment_path_below(result->parallel->cpu_path);
    other.train.interleave = options->train.interleave + 1;
    other.train.threads = options->train.threads > 1 ? 1 : 2;
    if (backend) other.train.coroutine = !strcmp(backend, result->parallel->coroutine) ? coroutine_backend_at(0) : backend;
    *ret_count = 0;
    if (!repeat_run(result, &other, "another order of ready ranks, number of threads and coroutine backend", &repeats[(*ret_count)++], error)) return false;
    if (!below || strcmp(result->parallel->gemm, "fixed") != 0) return true;
    other = *options;
    other.train.cpu_path = below;
    return repeat_run(result, &other, "another CPU path", &repeats[(*ret_count)++], error);
}

/* The passes that the checks taken ask for. */
static unsigned passes_of(const struct check_selection *selection)
{
    static const struct { const char *id; unsigned which; } wants[] = {
        {"influence", VARY_INFLUENCE | VARY_MASS}, {"softmax-mass", VARY_MASS | VARY_INFLUENCE}, {"lse", VARY_LSE}, {"gradient-owner", VARY_GRADIENT}, {"flag-sensitivity", VARY_FLAGS},
    };
    unsigned which = 0;
    for (int i = 0; i < check_count(); i++) {
        for (size_t k = 0; k < sizeof wants / sizeof wants[0]; k++) {
            if (selection->taken[i] && !strcmp(check_at(i)->id, wants[k].id)) which |= wants[k].which;
        }
    }
    return which;
}

static bool vary(struct result *result, const struct experiment_options *options, unsigned which, struct error *error)
{
    struct attention_source source = {result->scenario, options};
    if (!which) return true;
    result->context.variations = context_variations_new(&result->scenario->config, result->context.inputs, which, run_with_faults, &source, &options->train, error);
    return result->context.variations != NULL;
}

/* What ledgers say is off counts as a difference, too: a sum may come out right by chance. */
static bool consumes_otherwise(const struct result *result)
{
    const struct check *check = check_find_by_id("consumption");
    struct evidence evidence = {&result->scenario->config, result->parallel, result->standalone, NULL, NULL, NULL, 0, NULL, NULL, NULL, NULL};
    struct check_result of_check;
    struct finding finding;
    return check_run_alone(check, &evidence, &of_check, &finding, 1) > 0;
}

static bool judge(struct result *result, const struct experiment_options *options, const struct check_selection *selection, struct site_plan *plan, struct error *error)
{
    struct context_result *context = &result->context;
    bool finished = facts_finished(result->parallel), good = true, look = selection->deep || selection->listed;
    struct repeat repeats[2];
    int repeats_count = 0;
    if (finished) {
        context->comparison = context_comparison_new(result->parallel, result->standalone, facts_finished(context->single) ? context->single : NULL);
        look = look || context_comparison_suspect(context->comparison) || consumes_otherwise(result);
    }
    if (finished && look) good = run_fine(result, options, error) && vary(result, options, passes_of(selection), error);
    if (good && selection->deep && finished) good = run_repeats(result, options, repeats, &repeats_count, error);
    if (!good) return false;
    struct context_evidence own = {context->inputs, context->comparison, context->fine, context->variations};
    struct evidence evidence = {&result->scenario->config, result->parallel, result->standalone, result->parallel_other, NULL, NULL, repeats_count, repeats, NULL, &own, NULL};
    checks_run(&evidence, selection, result);
    result->verdict = experiment_verdict(result);
    if (result->verdict != VERDICT_CONSISTENT) result->has_diagnosis = diagnose(&evidence, result);
    struct experiment_plans plans = {plan, NULL};
    if (!experiment_faults(result, &plans, options, error)) return false;
    experiment_expect(result);
    return true;
}

bool experiment_attention(struct result *result, const struct experiment_options *options, const struct check_selection *selection, struct error *error)
{
    struct site_plan *plan = scenario_plan(result->scenario, false, layout_ranks(&result->scenario->config.layout), error);
    bool good = plan && run_all(result, options, plan, error) && judge(result, options, selection, plan, error);
    if (good) result->wall_s += result->context.single->wall_s;
    site_plan_free(plan);
    return good;
}

void experiment_attention_free(struct context_result *context)
{
    context_comparison_free(context->comparison);
    context_comparison_free(context->fine);
    context_variations_free(context->variations);
    attention_inputs_free(context->inputs);
    record_free(context->single);
}
