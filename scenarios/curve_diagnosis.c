/* curve_diagnosis: from the curves to the runs, and from these to the candidates. */
#include "scenarios/curve_diagnosis.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/arena.h"

const char *const curve_verdict_names[] = {"explained", "unexplained", "not_visible"};

void curve_note(struct curve_diagnosis *d, const char *format, ...)
{
    if (d->notes_count == CURVE_NOTES_MAX) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(d->notes[d->notes_count++], sizeof d->notes[0], format, arguments);
    va_end(arguments);
}

/* Which lines are simulated: steps counted from 0, or from 1 where the curve begins so, up to CURVE_STEPS_MAX of them. */
static bool take_points(struct curve_diagnosis *d, const struct curve *parallel, struct error *error)
{
    int64_t base = parallel->step[0] == 1 ? 1 : 0;
    int *point = arena_alloc(d->arena, CURVE_STEPS_MAX * sizeof *point), *step = arena_alloc(d->arena, CURVE_STEPS_MAX * sizeof *step);
    for (int i = 0; i < parallel->count && parallel->step[i] - base < CURVE_STEPS_MAX; i++) {
        point[d->points] = i;
        step[d->points++] = (int)(parallel->step[i] - base);
    }
    if (d->points == 0) {
        error_input(error, "the first step is %lld; steps 0 to %d are simulated", (long long)parallel->step[0], CURVE_STEPS_MAX - 1);
        error_hint(error, "log the first steps too: the ratios there tell most; steps counted on from a checkpoint can be numbered from 0");
        error_at(error, parallel->file, parallel->line[0], 0, NULL);
        return false;
    }
    d->point = point;
    d->step = step;
    d->steps = step[d->points - 1] + 1;
    if (base == 1) curve_note(d, "the curves begin with step 1: it is taken for the first step, 0 of the simulation");
    if (d->points < parallel->count)
        curve_note(d, "%d of the curves' %d lines are compared: those of the first %d steps, which are simulated", d->points, parallel->count, CURVE_STEPS_MAX);
    if (d->step[0] != 0) curve_note(d, "the first step is missing: the exact ratios that it has are not there to be looked at");
    return true;
}

static const struct curve_trace *trace_of_same_plan(const struct curve_diagnosis *d, const struct curve_runs *runs, const struct curve_candidate *done, int count, const struct fault *fault)
{
    for (int i = 0; i < count; i++) {
        if (curve_faults_are_one(&runs->setting, done[i].fault, fault)) return done[i].trace;
    }
    return NULL;
}

static void progress(const struct curve_options *options, int done, int total, const char *what)
{
    if (options->progress) options->progress(options->progress_context, done, total, what);
}

static bool simulate(struct curve_diagnosis *d, struct curve_runs *runs, const struct curve_options *options, struct error *error)
{
    int total = fault_count();
    struct curve_candidate *all = arena_zalloc(d->arena, (size_t)total * sizeof *all);
    progress(options, 0, total, "faults simulated");
    if (!curve_trace(&runs->setting, NULL, true, &runs->standalone, error) || !curve_trace(&runs->setting, NULL, false, &runs->healthy, error)) return false;
    if (runs->standalone.end != TRACE_RAN || runs->healthy.end != TRACE_RAN) {
        error_input(error, "the scenario's own run, without any fault, does not come to its end");
        error_hint(error, "hpsim run %.200s --no-faults says why", runs->setting.scenario->file);
        return false;
    }
    for (int i = 0; i < total; i++) {
        const struct curve_trace *trace = trace_of_same_plan(d, runs, all, i, fault_at(i));
        if (!trace) {
            struct curve_trace *made = arena_alloc(d->arena, sizeof *made);
            if (!curve_trace(&runs->setting, fault_at(i), false, made, error)) return false;
            trace = made;
        }
        all[i].fault = fault_at(i);
        all[i].trace = trace;
        d->stopped += trace->end == TRACE_STOPPED;
        d->not_hit += trace->end == TRACE_NOT_HIT;
        progress(options, i + 1, total, "faults simulated");
    }
    d->simulated = total;
    d->candidates = arena_zalloc(d->arena, (size_t)total * sizeof *d->candidates);
    for (int i = 0; i < total; i++) {
        if (all[i].trace->end == TRACE_RAN) d->candidates[d->candidates_count++] = all[i];
    }
    return true;
}

/* Does the fault show in what the curves have? What does not at one seed is not run at others. */
static bool shows(const struct curve_diagnosis *d, const struct curve_runs *runs, const struct curve_trace *trace)
{
    for (int k = 0; k < CURVE_CHANNELS; k++) {
        for (int p = 0; p < d->points; p++) {
            enum curve_channel channel = (enum curve_channel)k;
            double by = curve_simulated(runs, trace, channel, d->step[p]) - curve_simulated(runs, &runs->healthy, channel, d->step[p]);
            double least = d->floor[k] ? d->floor[k][p] : d->floor[CURVE_PRINTED][p];
            if (!(fabs(by) <= least)) return true;
        }
    }
    return false;
}

/* Candidate i at another seed; faults that do the same share a run. NULL in ret_trace: no curve. */
static bool trace_more(struct curve_diagnosis *d, const struct curve_runs *runs, struct curve_runs *other, int seed, int i, struct error *error)
{
    struct curve_candidate *c = &d->candidates[i];
    if (!shows(d, runs, c->trace)) return true;
    for (int j = 0; j < i; j++) {
        if (d->candidates[j].trace != c->trace) continue;
        c->more[seed] = d->candidates[j].more[seed];
        return true;
    }
    struct curve_trace *made = arena_alloc(d->arena, sizeof *made);
    if (!curve_trace(&other->setting, c->fault, false, made, error)) return false;
    if (made->end == TRACE_RAN) c->more[seed] = made;
    return true;
}

static bool simulate_seed(struct curve_diagnosis *d, struct curve_runs *runs, int seed, const struct curve_options *options, struct error *error)
{
    struct curve_runs *other = &runs->more[seed];
    struct scenario *scenario = arena_alloc(d->arena, sizeof *scenario);
    *scenario = *runs->setting.scenario;
    scenario->config.seed += 7919 * (uint64_t)(seed + 1);
    other->setting = runs->setting;
    other->setting.scenario = scenario;
    other->setting.observe = false;
    struct run_config config = scenario->config;
    config.train.steps = d->steps;
    struct initial *initial = initial_new(&config, error);
    other->setting.initial = initial;
    bool good = initial && curve_trace(&other->setting, NULL, true, &other->standalone, error) && curve_trace(&other->setting, NULL, false, &other->healthy, error);
    for (int i = 0; good && i < d->candidates_count; i++) {
        good = trace_more(d, runs, other, seed, i, error);
        progress(options, i + 1, d->candidates_count, "faults simulated at another seed");
    }
    initial_free(initial);
    return good;
}

/* The curves are another model's: what of a fault's curve is the fault's, and what the model's, other seeds show. */
static bool simulate_more(struct curve_diagnosis *d, struct curve_runs *runs, const struct curve_options *options, struct error *error)
{
    if (d->same_model || runs->setting.scenario->config.model.weights[0]) return true;
    runs->more = arena_zalloc(d->arena, CURVE_SEEDS_MORE * sizeof *runs->more);
    for (int seed = 0; seed < CURVE_SEEDS_MORE; seed++) {
        if (!simulate_seed(d, runs, seed, options, error)) return false;
        runs->more_count++;
    }
    return true;
}

static bool diagnose_curves(struct curve_diagnosis *d, struct curve_runs *runs, const struct curve *parallel, const struct curve *standalone,
                            const struct curve_options *options, struct error *error)
{
    if (!curves_match(parallel, standalone, error) || !take_points(d, parallel, error)) return false;
    struct run_config config = runs->setting.scenario->config;
    config.train.steps = runs->setting.steps = d->steps;
    struct initial *initial = initial_new(&config, error);
    if (!initial) return false;
    runs->setting.initial = initial;
    bool good = simulate(d, runs, options, error);
    if (good) {
        curve_measure(d, runs, parallel, standalone, options->noise);
        good = simulate_more(d, runs, options, error);
    }
    if (good) {
        curve_rank(d, runs);
        good = curve_separate(d, runs, options, error);
    }
    initial_free(initial);
    return good;
}

struct curve_diagnosis *curve_diagnose(const struct scenario *scenario, const struct curve *parallel, const struct curve *standalone,
                                       const struct curve_options *options, struct error *error)
{
    struct arena *arena = arena_new("curves", false);
    struct curve_diagnosis *d = arena_zalloc(arena, sizeof *d);
    d->arena = arena;
    struct curve_runs runs = {.setting = {.scenario = scenario, .train = &options->train, .observe = true, .arena = arena}};
    if (diagnose_curves(d, &runs, parallel, standalone, options, error)) return d;
    arena_free(arena);
    return NULL;
}

void curve_diagnosis_free(struct curve_diagnosis *diagnosis)
{
    if (diagnosis) arena_free(diagnosis->arena);
}
