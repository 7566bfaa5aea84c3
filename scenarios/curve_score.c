/* curve_score: noise, scores and classes; the formulas stand in curve_diagnosis.h. Sums go over channels, then steps,
 * ascending. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios/curve_diagnosis.h"
#include "scenarios/ratio.h"
#include "scenarios/spelling.h"
#include "sim/arena.h"

static const double backward_reading = 0.98, quality_least = -20, explains_least = 0.35, margin_of_healthy = 0.02, same_model_error = 1e-4;

/* ---- differences ---- */

static double difference(double parallel, double standalone)
{
    if (parallel == standalone) return 0;
    return (parallel - standalone) / fmax(fabs(standalone), 1e-300) ;
}

/* What the simulation says of the channel; the standalone run prints what backward gets. */
static double standalone_value(const struct curve_runs *runs, enum curve_channel channel, int step)
{
    return runs->standalone.value[channel == CURVE_NORM ? CURVE_NORM : CURVE_BACKWARD][step];
}

double curve_simulated(const struct curve_runs *runs, const struct curve_trace *trace, enum curve_channel channel, int step)
{
    return difference(trace->value[channel][step], standalone_value(runs, channel, step));
}

/* A standalone file without its own backward column has one loss. */
static enum curve_channel standalone_channel(const struct curve *standalone, enum curve_channel channel)
{
    return channel == CURVE_BACKWARD && !standalone->value[CURVE_BACKWARD] ? CURVE_PRINTED : channel;
}

static double given_difference(const struct curve *parallel, const struct curve *standalone, enum curve_channel channel, int i)
{
    return difference(parallel->value[channel][i], standalone->value[standalone_channel(standalone, channel)][i]);
}

/* ---- noise ---- */

static double digits_floor(const struct curve *parallel, const struct curve *standalone, enum curve_channel channel, int i)
{
    enum curve_channel other = standalone_channel(standalone, channel);
    double p = fabs(parallel->value[channel][i]), s = fmax(fabs(standalone->value[other][i]), 1e-300);
    return (curve_resolution(parallel, channel, i) + curve_resolution(standalone, other, i) * p / s) / s;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double scatter_of(const struct curve *parallel, const struct curve *standalone, enum curve_channel channel)
{
    enum { LEAST = 5 };
    int count = parallel->count - 2;
    if (parallel->count < LEAST) return 0;
    double *seconds = memory_alloc((size_t)count * sizeof *seconds);
    for (int i = 0; i < count; i++) {
        seconds[i] = fabs(given_difference(parallel, standalone, channel, i) - 2 * given_difference(parallel, standalone, channel, i + 1) +
                          given_difference(parallel, standalone, channel, i + 2));
    }
    qsort(seconds, (size_t)count, sizeof *seconds, by_size);
    double median = count % 2 ? seconds[count / 2] : (seconds[count / 2 - 1] + seconds[count / 2]) / 2;
    free(seconds);
    return 3 * median / (0.6745 * sqrt(6));
}

static bool is_same_model(const struct curve_diagnosis *d, const struct curve_runs *runs, const struct curve *standalone)
{
    for (int p = 0; p < d->points; p++) {
        double given = standalone->value[CURVE_PRINTED][d->point[p]], simulated = standalone_value(runs, CURVE_PRINTED, d->step[p]);
        if (!(fabs(given - simulated) <= same_model_error * fabs(simulated) + curve_resolution(standalone, CURVE_PRINTED, d->point[p]))) return false;
    }
    return true;
}

static void measure_channel(struct curve_diagnosis *d, const struct curve_runs *runs, const struct curve *parallel, const struct curve *standalone,
                            enum curve_channel channel, double noise)
{
    double roundoff = format_traits[precision_storage(&runs->setting.scenario->config.precision)].unit_roundoff;
    double scattered = d->same_model || !isnan(noise) ? 0 : scatter_of(parallel, standalone, channel);
    d->difference[channel] = arena_alloc(d->arena, (size_t)d->points * sizeof(double));
    d->floor[channel] = arena_alloc(d->arena, (size_t)d->points * sizeof(double));
    for (int p = 0; p < d->points; p++) {
        double digits = digits_floor(parallel, standalone, channel, d->point[p]);
        double healthy = fabs(curve_simulated(runs, &runs->healthy, channel, d->step[p]));
        double base = digits + 16 * (isfinite(healthy) ? healthy : 0) + 64 * roundoff;
        double least = isnan(noise) ? fmax(base, scattered) : fmax(base, noise);
        if (scattered > base) d->noise_from = "the scatter of the curves' difference";
        d->difference[channel][p] = given_difference(parallel, standalone, channel, d->point[p]);
        d->floor[channel][p] = least;
        d->noise = fmax(d->noise, least);
    }
}

static void find_ratio(struct curve_diagnosis *d, const struct curve_runs *runs, enum curve_channel channel)
{
    const struct layout *layout = &runs->setting.scenario->config.layout;
    double ratio = 1 + d->difference[channel][0], tolerance = fmax(2 * d->floor[channel][0], 1e-6);
    struct ratio_sample sample = {.numbers = {.M = layout->microbatches, .D = layout_data_ranks(layout), .P = layout->pp, .C = layout_cp(layout), .T = layout->tp,
                                              .D_shard = layout->dp_shard, .D_replicate = layout->dp_replicate},
                                  .value = ratio};
    if (fabs(d->difference[channel][0]) <= d->floor[channel][0]) snprintf(d->ratio[channel], sizeof d->ratio[channel], "1");
    else if (ratio == 0) snprintf(d->ratio[channel], sizeof d->ratio[channel], "0");
    else if (tolerance < 0.02) snprintf(d->ratio[channel], sizeof d->ratio[channel], "%s", ratio_classify(&sample, 1, 'M', 3, tolerance).text);
}

void curve_measure(struct curve_diagnosis *d, const struct curve_runs *runs, const struct curve *parallel, const struct curve *standalone, double noise)
{
    d->same_model = is_same_model(d, runs, standalone);
    d->noise_from = isnan(noise) ? "the printed digits and the rounding of a healthy run" : "--noise";
    for (int k = 0; k < CURVE_CHANNELS; k++) {
        enum curve_channel channel = (enum curve_channel)k;
        d->given[k] = parallel->value[k] && standalone->value[standalone_channel(standalone, channel)];
        if (!d->given[k]) continue;
        measure_channel(d, runs, parallel, standalone, channel, noise);
        if (d->step[0] == 0) find_ratio(d, runs, channel);
    }
    int later = -1;
    for (int i = d->points; i < parallel->count && later < 0; i++) {
        if (fabs(given_difference(parallel, standalone, CURVE_PRINTED, i)) > 4 * d->floor[CURVE_PRINTED][d->points - 1]) later = i;
    }
    bool visible = false;
    for (int p = 0; p < d->points; p++) visible = visible || fabs(d->difference[CURVE_PRINTED][p]) > 2 * d->floor[CURVE_PRINTED][p];
    if (later >= 0 && !visible) curve_note(d, "the losses part at step %lld only, behind the steps that are simulated", (long long)parallel->step[later]);
    if ((parallel->value[CURVE_NORM] != NULL) != (standalone->value[CURVE_NORM] != NULL)) curve_note(d, "only one of the files has a gradient norm: it is not looked at");
    if (!d->given[CURVE_NORM]) curve_note(d, "no gradient norm is given: it would tell apart more than any other column");
    if (!d->same_model) curve_note(d, "the standalone curve is not the one that this scenario's model makes: ratios and shapes are compared, not digits");
}

/* ---- score ---- */

/* The simulated channel that a given one is held against. */
static enum curve_channel read_as(enum curve_channel channel, bool reads_backward)
{
    return channel == CURVE_PRINTED && reads_backward ? CURVE_BACKWARD : channel;
}

static double agreement(double given, double simulated, double least)
{
    if (!isfinite(simulated)) return 0;
    double gap = fmax(0, fabs(given - simulated) - least), size = fmax(fabs(given), fabs(simulated));
    return (1 / (1 + gap / (0.02 * size + least)) + 1 - gap / (fabs(given) + fabs(simulated) + least)) / 2;
}

/* The step's own, and the mean of the later ones, by weight of the later ones together. */
static double by_step(const struct curve_diagnosis *d, const double *one, double weight)
{
    int first = d->step[0] == 0 ? 1 : 0;
    double later = 0;
    for (int p = first; p < d->points; p++) later += one[p] / (d->points - first);
    if (d->points == first) return one[0];
    if (first == 0) return later;
    return (one[0] + weight * later) / (1 + weight);
}

static double score_same(const struct curve_diagnosis *d, const struct curve_runs *runs, const struct curve_trace *trace, enum curve_channel channel, enum curve_channel simulated)
{
    double one[CURVE_STEPS_MAX];
    for (int p = 0; p < d->points; p++)
        one[p] = agreement(d->difference[channel][p], curve_simulated(runs, trace, simulated, d->step[p]), d->floor[channel][p]);
    return by_step(d, one, 1);
}

/* ln q of one step. */
static double quality(double given, const double *due, int count, double relative, double least)
{
    double mean = 0, square = 0;
    for (int i = 0; i < count; i++) {
        if (!isfinite(due[i])) return quality_least;
        mean += due[i] / count;
    }
    for (int i = 0; i < count; i++) square += (due[i] - mean) * (due[i] - mean) / (count > 1 ? count - 1 : 1);
    double narrow = relative * fmax(fabs(given), fabs(mean)) + least, wide = sqrt(narrow * narrow + square);
    double z = fmax(0, fabs(given - mean) - least) / wide;
    return fmax(quality_least, log(narrow / wide) - 2 * log1p(z * z / 3));
}

/* Mean ln q. traces: of the seeds, the scenario's own first. */
static double score_other(const struct curve_diagnosis *d, const struct curve_runs *runs, const struct curve_trace *const *traces, enum curve_channel channel, enum curve_channel simulated)
{
    double one[CURVE_STEPS_MAX];
    for (int p = 0; p < d->points; p++) {
        double due[1 + CURVE_SEEDS_MORE];
        int count = 0;
        for (int s = 0; s <= runs->more_count; s++) {
            if (traces[s]) due[count++] = curve_simulated(s == 0 ? runs : &runs->more[s - 1], traces[s], simulated, d->step[p]);
        }
        one[p] = quality(d->difference[channel][p], due, count, d->step[p] == 0 ? 0.01 : 0.05, d->floor[channel][p]);
    }
    return by_step(d, one, 0.5);
}

/* At the first step, is the given ratio one that this cause can't make? Where it is a formula, 10 % is what micro-batches of
 * unequal length may move it by; a large difference of no such form may be half as large again, unless both are so large
 * that they may be a number of tokens. */
static bool contradicts(const struct curve_diagnosis *d, const struct curve_runs *runs, const struct curve_trace *trace, enum curve_channel channel, bool reads_backward)
{
    double given = d->difference[channel][0], due = curve_simulated(runs, trace, read_as(channel, reads_backward), 0);
    bool is_formula = d->ratio[channel][0] && strcmp(d->ratio[channel], "1") != 0;
    if (d->step[0] != 0) return false;
    if (is_formula) return !(fabs(given - due) <= 0.1 * fabs(1 + given) + d->floor[channel][0]);
    if (!d->same_model) return false;
    double size = fmax(fabs(given), fabs(due)), least = fmin(fabs(given), fabs(due));
    return fabs(given) > 0.5 && least < 10 && !(fabs(given - due) <= 0.5 * size);
}

static double score(const struct curve_diagnosis *d, const struct curve_runs *runs, const struct curve_trace *const *traces, bool reads_backward)
{
    double sum = 0, factor = reads_backward ? backward_reading : 1;
    int channels = 0;
    for (int k = 0; k < CURVE_CHANNELS; k++) {
        enum curve_channel channel = (enum curve_channel)k, simulated = read_as(channel, reads_backward);
        if (!d->given[k]) continue;
        if (contradicts(d, runs, traces[0], channel, reads_backward)) factor /= 2;
        sum += d->same_model ? score_same(d, runs, traces[0], channel, simulated) : score_other(d, runs, traces, channel, simulated);
        channels++;
    }
    return factor * (d->same_model ? sum / channels : 1 / (1 - sum / channels / 4));
}

static double distance(const struct curve_diagnosis *d, const struct curve_runs *runs, const struct curve_candidate *c)
{
    double sum = 0;
    for (int k = 0; k < CURVE_CHANNELS; k++) {
        for (int p = 0; d->given[k] && p < d->points; p++) {
            double one = fabs(d->difference[k][p] - curve_simulated(runs, c->trace, read_as((enum curve_channel)k, c->reads_backward), d->step[p]));
            sum += isfinite(one) ? one : 1e300;
        }
    }
    return sum;
}

/* ---- classes ---- */

static bool within_floor(const struct curve_diagnosis *d, const struct curve_runs *runs, const struct curve_trace *a, bool a_backward, const struct curve_trace *b, bool b_backward)
{
    for (int k = 0; k < CURVE_CHANNELS; k++) {
        for (int p = 0; d->given[k] && p < d->points; p++) {
            double x = curve_simulated(runs, a, read_as((enum curve_channel)k, a_backward), d->step[p]);
            double y = curve_simulated(runs, b, read_as((enum curve_channel)k, b_backward), d->step[p]);
            bool neither = !isfinite(x) && !isfinite(y);
            if (!neither && !(fabs(x - y) <= 2 * d->floor[k][p])) return false;
        }
    }
    return true;
}

/* Best first; equal ones by their distance, then in the catalogue's order (the sort is stable). */
static bool is_before(const struct curve_candidate *a, const struct curve_candidate *b)
{
    if (a->class != b->class) return a->class < b->class;
    if (a->class == 0 && a->score != b->score) return a->score > b->score;
    return a->distance < b->distance;
}

static void sort(struct curve_diagnosis *d)
{
    for (int i = 1; i < d->candidates_count; i++) {
        struct curve_candidate moved = d->candidates[i];
        int at = i;
        for (; at > 0 && is_before(&moved, &d->candidates[at - 1]); at--) d->candidates[at] = d->candidates[at - 1];
        d->candidates[at] = moved;
    }
}

static void make_classes(struct curve_diagnosis *d, const struct curve_runs *runs)
{
    sort(d);
    int classes = 0;
    for (int i = 0; i < d->candidates_count; i++) {
        struct curve_candidate *head = &d->candidates[i];
        if (head->class) continue;
        head->class = ++classes;
        for (int j = i + 1; j < d->candidates_count; j++) {
            struct curve_candidate *c = &d->candidates[j];
            if (!c->class && within_floor(d, runs, head->trace, head->reads_backward, c->trace, c->reads_backward)) c->class = head->class;
        }
    }
    sort(d);
}

/* Those whose curves are a healthy run's, or the others. What shows in either reading is not hidden where something is
 * seen; where nothing is, it is enough that the printed curve hides it. */
static void keep_if(struct curve_diagnosis *d, const struct curve_runs *runs, bool hidden)
{
    int kept = 0;
    for (int i = 0; i < d->candidates_count; i++) {
        const struct curve_trace *trace = d->candidates[i].trace;
        bool is_hidden = within_floor(d, runs, trace, false, &runs->healthy, false) &&
                         (hidden || d->given[CURVE_BACKWARD] || within_floor(d, runs, trace, true, &runs->healthy, false));
        if (is_hidden == hidden) d->candidates[kept++] = d->candidates[i];
    }
    d->candidates_count = kept;
}

/* ---- words ---- */

static const char *channel_name(enum curve_channel channel)
{
    static const char *const names[CURVE_CHANNELS] = {"Printed loss", "Loss for backward", "Gradient norm"};
    return names[channel];
}

static void say_why(const struct curve_diagnosis *d, const struct curve_runs *runs, struct curve_candidate *c)
{
    struct phrase phrase = {c->why, sizeof c->why, 0};
    phrase_add(&phrase, "%s.", c->fault->injected);
    for (int k = 0; k < CURVE_CHANNELS; k++) {
        if (!d->given[k]) continue;
        int worst = 0;
        enum curve_channel simulated = read_as((enum curve_channel)k, c->reads_backward);
        for (int p = 1; p < d->points; p++) {
            if (fabs(d->difference[k][p]) > fabs(d->difference[k][worst])) worst = p;
        }
        bool exact = d->step[0] == 0 && d->ratio[k][0] && strcmp(d->ratio[k], "1") != 0;
        int at = exact ? 0 : worst;
        phrase_add(&phrase, " %s at step %d: x %.6g%s%s, simulated x %.6g.", k == CURVE_PRINTED && c->reads_backward ? "Loss, read as what backward gets," : channel_name((enum curve_channel)k),
                   d->step[at], 1 + d->difference[k][at], exact ? " = " : "", exact ? d->ratio[k] : "", 1 + curve_simulated(runs, c->trace, simulated, d->step[at]));
    }
}

static bool is_visible(const struct curve_diagnosis *d)
{
    for (int k = 0; k < CURVE_CHANNELS; k++) {
        for (int p = 0; d->given[k] && p < d->points; p++) {
            if (fabs(d->difference[k][p]) > 2 * d->floor[k][p]) return true;
        }
    }
    return false;
}

void curve_rank(struct curve_diagnosis *d, const struct curve_runs *runs)
{
    bool visible = is_visible(d);
    const struct curve_trace *healthy[1 + CURVE_SEEDS_MORE] = {&runs->healthy};
    for (int s = 0; s < runs->more_count; s++) healthy[1 + s] = &runs->more[s].healthy;
    d->healthy_score = score(d, runs, healthy, false);
    keep_if(d, runs, !visible);
    for (int i = 0; i < d->candidates_count; i++) {
        struct curve_candidate *c = &d->candidates[i];
        const struct curve_trace *traces[1 + CURVE_SEEDS_MORE] = {c->trace};
        memcpy(traces + 1, c->more, sizeof c->more);
        double printed = score(d, runs, traces, false), backward = d->given[CURVE_BACKWARD] ? 0 : score(d, runs, traces, true);
        c->reads_backward = backward > printed;
        c->score = visible ? fmax(printed, backward) : 1.0 / d->candidates_count;
        if (!visible) c->reads_backward = false;
        c->distance = distance(d, runs, c);
    }
    make_classes(d, runs);
    for (int i = 0; i < d->candidates_count; i++) say_why(d, runs, &d->candidates[i]);
    double best = d->candidates_count ? d->candidates[0].score : 0;
    bool explained = best >= explains_least && best > d->healthy_score + margin_of_healthy;
    d->verdict = !visible ? CURVE_NOT_VISIBLE : explained ? CURVE_EXPLAINED : CURVE_UNEXPLAINED;
}
