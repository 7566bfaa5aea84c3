/* curve_separate: what would tell the candidates in front from each other, found by looking at their simulated runs.
 *
 * In front are all of the first class, then the heads of the next ones within 0.25 of its score, at most LEADERS; where
 * nothing is visible, all that stay hidden and a healthy run beside them. An observation is
 *     a channel that was not given, at the first step at which two of them differ;
 *     a vector noted from the run (curve_observations.def), likewise;
 *     the scenario with one key changed (below), both curves taken anew: the first channel and step at which they differ.
 * Each leader, and each of the rest against them (without changed keys), gets the fewest that tell it from the others,
 * greedily: always the one that tells it from most, of equal ones the first in this order. What none tells apart stands
 * in alike. What differs only in how hpsim itself carries a run out (memory, time) is no observation. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios/curve_diagnosis.h"
#include "sim/arena.h"

enum { LEADERS = 12, CHANGED_LEADERS = 6, CHANGED_STEPS = 2, CHANGES_MAX = 8 };
static const double score_near = 0.25;

static const char *const channel_names[CURVE_CHANNELS] = {"the printed loss", "the loss that backward is called on", "the gradient norm"};

/* ---- changes of the scenario ---- */

struct change {
    char what[160];
    int overrides_count; struct override overrides[3];
    char value[24];
    double *leader[CURVE_CHANNELS];      /* [leader * CHANGED_STEPS + step]: D; NAN where it has none */
    int steps;
};

/* Micro-batches of another size: the next number of them, up or down, that the batch can be cut into. */
static int other_microbatches(const struct run_config *config)
{
    int data = layout_data_ranks(&config->layout), now = config->layout.microbatches, batch = config->train.global_batch;
    for (int m = now + 1; m * data <= batch; m++) {
        if (batch % (m * data) == 0) return m;
    }
    for (int m = now - 1; m > 1; m--) {
        if (batch % (m * data) == 0) return m;
    }
    return 0;
}

static void add_change(struct change *changes, int *count, const char *path, const char *value, const char *path_2, const char *value_2, const char *what)
{
    struct change *change = &changes[(*count)++];
    snprintf(change->value, sizeof change->value, "%s", value);
    change->overrides[change->overrides_count++] = (struct override){path, change->value};
    if (path_2) change->overrides[change->overrides_count++] = (struct override){path_2, value_2};
    snprintf(change->what, sizeof change->what, "%s", what);
}

/* Only changes that change something. */
static int make_changes(const struct run_config *config, struct change changes[CHANGES_MAX])
{
    const struct layout *layout = &config->layout;
    int count = 0, other = other_microbatches(config);
    char text[160], value[24];
    if (layout->microbatches > 1) add_change(changes, &count, "parallel.pipeline.microbatches", "1", NULL, NULL, "set M to 1");
    if (other) {
        snprintf(value, sizeof value, "%d", other);
        snprintf(text, sizeof text, "change the micro-batch size (M = %d)", other);
        add_change(changes, &count, "parallel.pipeline.microbatches", value, NULL, NULL, text);
    }
    if (layout_data_ranks(layout) > 1) add_change(changes, &count, "parallel.dp_shard", "1", "parallel.dp_replicate", "1", "take one data rank (D = 1)");
    if (config->data.packing == PACKING_DOCUMENTS) add_change(changes, &count, "data.packing", "stream", NULL, NULL, "give every micro-batch equally many valid tokens");
    if (!precision_is(&config->precision, FORMAT_FP64)) add_change(changes, &count, "precision", "fp64", NULL, NULL, "compute in fp64");
    if (config->train.optimizer != OPTIMIZER_SGD) add_change(changes, &count, "train.optimizer.kind", "sgd", "train.optimizer.lr", "0.1", "take SGD for the optimizer");
    if (config->train.grad_clip > 0) add_change(changes, &count, "train.grad_clip", "0", NULL, NULL, "switch gradient clipping off");
    return count;
}

static struct scenario *load_changed(const struct scenario *scenario, const struct scenario_options *wanted, const struct change *change)
{
    struct scenario_options options = *wanted;
    struct override *overrides = memory_alloc((size_t)(wanted->overrides_count + change->overrides_count) * sizeof *overrides);
    struct error error = {0};
    if (wanted->overrides_count) memcpy(overrides, wanted->overrides, (size_t)wanted->overrides_count * sizeof *overrides);
    memcpy(overrides + wanted->overrides_count, change->overrides, (size_t)change->overrides_count * sizeof *overrides);
    options.overrides = overrides;
    options.overrides_count += change->overrides_count;
    struct scenario *changed = scenario_load(scenario->file, &options, &error); /* NULL: this layout can't have it */
    free(overrides);
    return changed;
}

static double changed_difference(const struct curve_trace *parallel, const struct curve_trace *standalone, int channel, int step)
{
    double p = parallel->value[channel][step], s = standalone->value[channel == CURVE_NORM ? CURVE_NORM : CURVE_BACKWARD][step];
    return p == s ? 0 : (p - s) / fmax(fabs(s), 1e-300);
}

/* The leaders under the change; faults NULL: healthy. False: an error, or interrupted. */
static bool run_change(struct curve_diagnosis *d, const struct curve_runs *runs, const struct curve_options *options, struct change *change,
                       const struct curve_candidate *const *leaders, int count, struct error *error)
{
    struct scenario *scenario = load_changed(runs->setting.scenario, options->wanted, change);
    if (!scenario) return true;
    struct curve_setting setting = runs->setting;
    struct run_config config = scenario->config;
    int steps = d->steps < CHANGED_STEPS ? d->steps : CHANGED_STEPS;
    config.train.steps = setting.steps = steps;
    setting.scenario = scenario;
    setting.observe = false;
    struct initial *initial = initial_new(&config, error);
    setting.initial = initial;
    struct curve_trace standalone;
    bool good = initial && curve_trace(&setting, NULL, true, &standalone, error);
    for (int k = 0; k < CURVE_CHANNELS; k++) change->leader[k] = arena_alloc(d->arena, (size_t)(count * CHANGED_STEPS) * sizeof(double));
    for (int i = 0; i < count && good; i++) {
        struct curve_trace trace;
        good = curve_trace(&setting, leaders[i] ? leaders[i]->fault : NULL, false, &trace, error);
        if (good && trace.end == TRACE_NOT_HIT) good = curve_trace(&setting, NULL, false, &trace, error);
        for (int k = 0; k < CURVE_CHANNELS && good; k++) {
            for (int step = 0; step < steps; step++)
                change->leader[k][i * CHANGED_STEPS + step] = trace.end == TRACE_RAN ? changed_difference(&trace, &standalone, k, step) : NAN;
        }
    }
    if (good) change->steps = steps;
    initial_free(initial);
    scenario_free(scenario);
    return good;
}

/* ---- one observation, two leaders ---- */

struct scene {
    struct curve_diagnosis *d;
    const struct curve_runs *runs;
    int count; const struct curve_candidate *leader[LEADERS + 1]; /* NULL: healthy */
    int changed_count;                                             /* of these, the first so many were run changed */
    int changes_count; struct change changes[CHANGES_MAX];
    double tolerance;
};

static const struct curve_trace *trace_at(const struct scene *s, int leader)
{
    return s->leader[leader] ? s->leader[leader]->trace : &s->runs->healthy;
}

static bool apart(double a, double b, double tolerance)
{
    if (!isfinite(a) && !isfinite(b)) return false;
    return !(fabs(a - b) <= tolerance * fmax(1, fmax(fabs(a), fabs(b))));
}

static int kinds(const struct scene *s)
{
    return CURVE_CHANNELS + OBSERVATIONS + s->changes_count;
}

/* Where the leaders a and b part under an observation. False: nowhere. */
static bool parts(const struct scene *s, int kind, int a, int b, int *ret_channel, int *ret_step)
{
    *ret_channel = -1;
    if (kind < CURVE_CHANNELS) {
        *ret_channel = kind;
        for (*ret_step = 0; !s->d->given[kind] && *ret_step < s->d->steps; ++*ret_step) {
            if (apart(curve_simulated(s->runs, trace_at(s, a), (enum curve_channel)kind, *ret_step),
                      curve_simulated(s->runs, trace_at(s, b), (enum curve_channel)kind, *ret_step), s->tolerance)) return true;
        }
        return false;
    }
    if (kind < CURVE_CHANNELS + OBSERVATIONS) {
        *ret_step = curve_observation_differs(trace_at(s, a), trace_at(s, b), (enum curve_observation)(kind - CURVE_CHANNELS), s->tolerance);
        return *ret_step >= 0;
    }
    const struct change *change = &s->changes[kind - CURVE_CHANNELS - OBSERVATIONS];
    if (a >= s->changed_count || b >= s->changed_count) return false;
    for (*ret_step = 0; *ret_step < change->steps; ++*ret_step) {
        for (*ret_channel = 0; *ret_channel < CURVE_CHANNELS; ++*ret_channel) {
            bool is_printed_alone = *ret_channel == CURVE_BACKWARD && !s->d->given[CURVE_BACKWARD];
            if (is_printed_alone || (*ret_channel == CURVE_NORM && !s->d->given[CURVE_NORM])) continue;
            double x = change->leader[*ret_channel][a * CHANGED_STEPS + *ret_step], y = change->leader[*ret_channel][b * CHANGED_STEPS + *ret_step];
            if (apart(x, y, s->tolerance)) return true;
        }
    }
    return false;
}

static const char *words(const struct scene *s, int kind, int channel, int step)
{
    if (kind < CURVE_CHANNELS) return arena_printf(s->d->arena, "%s at step %d", channel_names[channel], step);
    if (kind < CURVE_CHANNELS + OBSERVATIONS) return arena_printf(s->d->arena, "%s, at step %d", curve_observation_names[kind - CURVE_CHANNELS], step);
    return arena_printf(s->d->arena, "%s: %s at step %d", s->changes[kind - CURVE_CHANNELS - OBSERVATIONS].what, channel_names[channel], step);
}

/* ---- each leader against the others ---- */

static int count_new(const struct scene *s, int kind, int me, const bool *told, const char **ret_words)
{
    int count = 0, channel, step;
    for (int other = 0; other < s->count; other++) {
        if (other == me || told[other] || !parts(s, kind, me, other, &channel, &step)) continue;
        if (count++ == 0) *ret_words = words(s, kind, channel, step);
    }
    return count;
}

static void separate_one(const struct scene *s, int me, struct curve_candidate *c)
{
    bool told[LEADERS + 1] = {false};
    for (;;) {
        int best = 0, best_kind = -1, channel, step;
        const char *best_words = NULL;
        for (int kind = 0; kind < kinds(s); kind++) {
            const char *text = NULL;
            int count = count_new(s, kind, me, told, &text);
            if (count <= best) continue;
            best = count;
            best_kind = kind;
            best_words = text;
        }
        if (best_kind < 0 || c->separate_count == CURVE_SEPARATE_MAX) break;
        c->separate_by[c->separate_count++] = best_words;
        for (int other = 0; other < s->count; other++) told[other] = told[other] || (other != me && parts(s, best_kind, me, other, &channel, &step));
    }
    c->alike = arena_alloc(s->d->arena, (size_t)(s->count + 1) * sizeof(void *));
    for (int other = 0; other < s->count; other++) {
        if (other != me && !told[other] && s->leader[other]) c->alike[c->alike_count++] = s->leader[other]->fault;
    }
}

static void take_leaders(struct scene *s)
{
    struct curve_diagnosis *d = s->d;
    int class = 0;
    if (d->verdict == CURVE_NOT_VISIBLE) s->leader[s->count++] = NULL;
    for (int i = 0; i < d->candidates_count && s->count < LEADERS; i++) {
        const struct curve_candidate *c = &d->candidates[i];
        bool head = c->class != class;
        class = c->class;
        bool near = c->score >= d->candidates[0].score - score_near || s->count < 3;
        if (c->class == 1 || (head && near)) s->leader[s->count++] = c;
    }
    s->changed_count = s->count < CHANGED_LEADERS ? s->count : CHANGED_LEADERS;
}

/* Those not in front against those in front, by what was noted of their runs. */
static void separate_others(struct scene *s)
{
    int leaders = s->count;
    for (int i = 0; i < s->d->candidates_count; i++) {
        struct curve_candidate *c = &s->d->candidates[i];
        bool is_leader = false;
        for (int l = 0; l < leaders; l++) is_leader = is_leader || s->leader[l] == c;
        if (is_leader) continue;
        s->leader[leaders] = c;
        s->count = leaders + 1;
        separate_one(s, leaders, c);
    }
    s->count = leaders;
}

/* What stays hidden is held against a healthy run alone: that is the question then. */
static bool separate_hidden(struct scene *s, const struct curve_options *options, struct error *error)
{
    struct curve_diagnosis *d = s->d;
    for (int i = 0; i < d->candidates_count; i++) {
        struct curve_candidate *c = &d->candidates[i];
        s->count = 2;
        s->leader[0] = NULL;
        s->leader[1] = c;
        s->changed_count = s->changes_count = 0;
        separate_one(s, 1, c);
    }
    /* Where no look at the run itself shows it: would it show in another layout? */
    s->count = 1;
    for (int i = 0; i < d->candidates_count && s->count < CHANGED_LEADERS; i++) {
        if (d->candidates[i].separate_count == 0) s->leader[s->count++] = &d->candidates[i];
    }
    s->changed_count = s->count;
    if (s->count == 1) return true;
    s->changes_count = make_changes(&s->runs->setting.scenario->config, s->changes);
    for (int i = 0; i < s->changes_count; i++) {
        if (!run_change(d, s->runs, options, &s->changes[i], s->leader, s->changed_count, error)) return false;
    }
    for (int me = 1; me < s->count; me++) {
        for (int kind = CURVE_CHANNELS + OBSERVATIONS; kind < kinds(s); kind++) {
            int channel, step;
            struct curve_candidate *c = (struct curve_candidate *)s->leader[me];
            if (c->separate_count < 2 && parts(s, kind, me, 0, &channel, &step)) c->separate_by[c->separate_count++] = words(s, kind, channel, step);
        }
    }
    return true;
}

bool curve_separate(struct curve_diagnosis *d, const struct curve_runs *runs, const struct curve_options *options, struct error *error)
{
    double roundoff = precision_roundoff(&runs->setting.scenario->config.precision);
    struct scene *s = memory_zalloc(sizeof *s);
    s->d = d;
    s->runs = runs;
    s->tolerance = fmax(1e-3, 8 * roundoff);
    bool good = true;
    if (d->verdict == CURVE_NOT_VISIBLE) {
        good = separate_hidden(s, options, error);
    } else {
        take_leaders(s);
        s->changes_count = s->count > 1 ? make_changes(&runs->setting.scenario->config, s->changes) : 0;
        for (int i = 0; i < s->changes_count && good; i++) {
            if (options->progress) options->progress(options->progress_context, i, s->changes_count, "changed layouts simulated");
            good = run_change(d, runs, options, &s->changes[i], s->leader, s->changed_count, error);
        }
        for (int i = 0; i < s->count && good; i++) separate_one(s, i, (struct curve_candidate *)s->leader[i]);
        if (good) separate_others(s);
    }
    free(s);
    return good;
}
