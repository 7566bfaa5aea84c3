/* curve_trace: one run, reduced to what can be compared; the record goes at once. Sums of squares and projections are in
 * fp64, ranks and elements ascending. A projection weighs element i by +1 or -1, by the parity of the bits of
 * i * 0x9e3779b97f4a7c15: it sees a sign or a direction that a norm does not. */
#include "scenarios/curve_trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/loss_convention.h"
#include "scenarios/compare.h"
#include "scenarios/facts.h"

const char *const curve_observation_names[OBSERVATIONS] = {
#define OBSERVATION(identifier, what) what,
#include "scenarios/curve_observations.def"
#undef OBSERVATION
};

/* Room first, numbers afterwards: with values NULL only counted. */
struct list { int count; double *values; };

static void put(struct list *list, double value)
{
    if (list->values) list->values[list->count] = value;
    list->count++;
}

/* ---- observations: one function each ---- */

static double printed_loss(const struct record *record, int step)
{
    const struct report_fact *report = facts_report(&record->rank[0], step);
    return report ? report->logged : NAN;
}

static void observe_losses(const struct record *record, int step, enum curve_observation which, struct list *list)
{
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        for (int i = 0; i < rank->losses.count; i++) {
            const struct loss_fact *fact = &rank->losses.items[i];
            if (fact->step != step) continue;
            put(list, which == OBSERVE_BACKWARD ? fact->backward_loss : fact->valid ? fact->loss_sum / (double)fact->valid : 0);
        }
    }
}

static void observe_ranks(const struct record *record, int step, enum curve_observation which, struct list *list)
{
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        const struct norm_fact *norm = facts_norm(rank, step);
        const struct count_fact *count = facts_count(rank, step);
        if (which == OBSERVE_COUNT && count) put(list, count->valid_global);
        if (which == OBSERVE_NORM_BY_RANK && norm) put(list, norm->norm);
        if (which == OBSERVE_NORM_BY_RANK && norm) put(list, norm->coefficient);
        for (int i = 0; which == OBSERVE_SAMPLES && i < rank->samples.count; i++) {
            const struct sample_fact *fact = &rank->samples.items[i];
            for (int s = 0; fact->step == step && s < fact->count; s++) put(list, (double)fact->sequences[s]);
        }
        if (which != OBSERVE_BAD_READS) continue;
        int bad = step == 0 ? rank->unwaited : 0;
        for (int i = 0; i < rank->poisons.count; i++) bad += rank->poisons.items[i].step == step;
        put(list, bad);
    }
}

static double sign_of(uint64_t i)
{
    return __builtin_parityll(i * UINT64_C(0x9e3779b97f4a7c15)) ? -1 : 1;
}

/* Of each parameter its norm and its projection, put together from the shards of the first copy. */
static void observe_tensors(const struct record *record, int step, enum tensor_kind kind, struct list *list)
{
    enum format storage = run_storage(&record->config);
    int params = record->params.count;
    double *sums = list->values ? memory_zalloc((size_t)params * 2 * sizeof *sums) : NULL;
    for (int r = 0; sums && r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].tensors.count; i++) {
            const struct tensor_fact *fact = &record->rank[r].tensors.items[i];
            if (fact->step != step || fact->kind != kind || fact->replica != 0) continue;
            for (int64_t j = 0; j < fact->elements; j++) {
                double value = format_get(fact->data, (size_t)j, storage);
                sums[2 * fact->param] += value * value;
                sums[2 * fact->param + 1] += sign_of((uint64_t)(fact->first + j)) * value;
            }
        }
    }
    for (int p = 0; p < params; p++) {
        put(list, sums ? sqrt(sums[2 * p]) : 0);
        put(list, sums ? sums[2 * p + 1] : 0);
    }
    free(sums);
}

static void observe_stages(const struct record *record, int step, struct list *list)
{
    for (int stage = 0; stage < record->config.layout.pp; stage++) {
        double sum = 0;
        for (int r = 0; list->values && r < record->ranks; r++) {
            if (record->rank[r].stage != stage) continue;
            for (int i = 0; i < record->rank[r].tensors.count; i++) {
                const struct tensor_fact *fact = &record->rank[r].tensors.items[i];
                if (fact->step != step || fact->kind != TENSOR_GRADIENT || fact->replica != 0) continue;
                for (int64_t j = 0; j < fact->elements; j++) {
                    double value = format_get(fact->data, (size_t)j, run_storage(&record->config));
                    sum += value * value;
                }
            }
        }
        put(list, sqrt(sum));
    }
}

/* How many copies differ from the first copy of the same rows. */
static void observe_copies(const struct record *record, int step, struct list *list)
{
    int params = record->params.count, differ = 0;
    const struct tensor_fact **first = memory_zalloc((size_t)params * (size_t)record->ranks * sizeof(void *));
    int *known = memory_zalloc((size_t)params * sizeof *known);
    for (int r = 0; list->values && r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].tensors.count; i++) {
            const struct tensor_fact *fact = &record->rank[r].tensors.items[i];
            if (fact->step != step || fact->kind != TENSOR_PARAM) continue;
            const struct tensor_fact **of_param = first + (size_t)fact->param * (size_t)record->ranks;
            int at = 0;
            while (at < known[fact->param] && (of_param[at]->first != fact->first || of_param[at]->elements != fact->elements)) at++;
            if (at < known[fact->param]) differ += memcmp(of_param[at]->digest, fact->digest, sizeof fact->digest) != 0;
            else if (at < record->ranks) of_param[known[fact->param]++] = fact;
        }
    }
    put(list, differ);
    free(known);
    free(first);
}

static void observe(const struct record *record, int step, enum curve_observation which, struct list *list)
{
    switch (which) {
    case OBSERVE_PRINTED_BESIDE: put(list, list->values ? printed_loss(record, step) / comparison_total_loss(record, step) : 0); break;
    case OBSERVE_BACKWARD: case OBSERVE_MICROBATCH_LOSS: observe_losses(record, step, which, list); break;
    case OBSERVE_STAGE_GRADIENT: observe_stages(record, step, list); break;
    case OBSERVE_PARAM_GRADIENT: observe_tensors(record, step, TENSOR_GRADIENT, list); break;
    case OBSERVE_PARAM: observe_tensors(record, step, TENSOR_PARAM, list); break;
    case OBSERVE_COPIES: observe_copies(record, step, list); break;
    default: observe_ranks(record, step, which, list); break;
    }
}

/* ---- a run ---- */

static void keep(const struct curve_setting *setting, const struct record *record, struct curve_trace *trace)
{
    trace->steps = setting->steps;
    memcpy(trace->digest, record->digest, sizeof trace->digest);
    for (int k = 0; k < CURVE_CHANNELS; k++) trace->value[k] = arena_alloc(setting->arena, (size_t)setting->steps * sizeof(double));
    for (int step = 0; step < setting->steps; step++) {
        const struct norm_fact *norm = facts_norm(&record->rank[0], step);
        trace->value[CURVE_PRINTED][step] = printed_loss(record, step);
        trace->value[CURVE_BACKWARD][step] = comparison_total_loss(record, step);
        trace->value[CURVE_NORM][step] = norm ? norm->norm : NAN;
    }
    if (!setting->observe) return;
    trace->observed = arena_zalloc(setting->arena, (size_t)(setting->steps * OBSERVATIONS) * sizeof *trace->observed);
    for (int i = 0; i < setting->steps * OBSERVATIONS; i++) {
        enum curve_observation which = (enum curve_observation)(i % OBSERVATIONS);
        struct list list = {0, NULL};
        observe(record, i / OBSERVATIONS, which, &list);
        list.values = arena_zalloc(setting->arena, (size_t)(list.count + 1) * sizeof(double));
        list.count = 0;
        observe(record, i / OBSERVATIONS, which, &list);
        trace->observed[i] = (struct observed){list.count, list.values};
    }
}

/* The scenario with this one fault, as --fault NAME would have it. */
static struct scenario with_fault(const struct curve_setting *setting, const struct fault *fault)
{
    struct scenario scenario = *setting->scenario;
    scenario.faults_count = fault ? 1 : 0;
    memset(&scenario.faults[0], 0, sizeof scenario.faults[0]);
    scenario.faults[0].fault = fault;
    if (fault) strncpy(scenario.faults[0].name, fault->name, sizeof scenario.faults[0].name - 1);
    return scenario;
}

static struct site_plan *plan_of(const struct curve_setting *setting, const struct fault *fault, int ranks, struct error *error)
{
    struct scenario *scenario = memory_alloc(sizeof *scenario);
    *scenario = with_fault(setting, fault);
    struct site_plan *plan = scenario_plan(scenario, false, ranks, error);
    free(scenario);
    return plan;
}

bool curve_trace(const struct curve_setting *setting, const struct fault *fault, bool standalone, struct curve_trace *ret_trace, struct error *error)
{
    struct run_config config = setting->scenario->config;
    *ret_trace = (struct curve_trace){0};
    config.train.steps = setting->steps;
    config.loss_cut = loss_cut_of(&config);
    if (standalone) config.layout = layout_standalone(&config.model);
    struct site_plan *plan = fault ? plan_of(setting, fault, layout_ranks(&config.layout), error) : NULL;
    if (error_is_set(error)) return false;
    struct train_options train = *setting->train;
    train.initial = setting->initial;
    struct record *record = train_run(&config, plan, &train, error);
    bool good = record && record->outcome != MACHINE_STOPPED;
    uint64_t hits = 0;
    for (int i = 0; plan && i < plan->armed_count; i++) hits += site_hits(plan, i);
    if (good && fault && hits == 0) ret_trace->end = TRACE_NOT_HIT;
    else if (good && !facts_finished(record)) ret_trace->end = TRACE_STOPPED;
    else if (good) keep(setting, record, ret_trace);
    site_plan_free(plan);
    record_free(record);
    return good;
}

static bool same_list(const struct at_list *a, const struct at_list *b)
{
    return a->count == b->count && !memcmp(a->values, b->values, (size_t)a->count * sizeof a->values[0]);
}

static bool same_armed(const struct armed *a, const struct armed *b)
{
    return a->site == b->site && a->deviation == b->deviation && same_list(&a->rank, &b->rank) && same_list(&a->stage, &b->stage) &&
           same_list(&a->step, &b->step) && same_list(&a->microbatch, &b->microbatch) && same_list(&a->layer, &b->layer) &&
           same_list(&a->hop, &b->hop) && !strcmp(a->param, b->param) && a->once == b->once && !strcmp(a->text, b->text) && a->value == b->value;
}

bool curve_faults_are_one(const struct curve_setting *setting, const struct fault *a, const struct fault *b)
{
    struct error error = {0};
    int ranks = layout_ranks(&setting->scenario->config.layout);
    struct site_plan *plan_a = plan_of(setting, a, ranks, &error), *plan_b = plan_of(setting, b, ranks, &error);
    bool same = plan_a && plan_b && plan_a->armed_count == plan_b->armed_count;
    for (int i = 0; same && i < plan_a->armed_count; i++) same = same_armed(&plan_a->armed[i], &plan_b->armed[i]);
    site_plan_free(plan_a);
    site_plan_free(plan_b);
    return same;
}

static bool differs(const struct observed *a, const struct observed *b, double tolerance)
{
    if (a->count != b->count) return true;
    double largest = 0;
    for (int i = 0; i < a->count; i++) {
        if (isfinite(a->values[i])) largest = fmax(largest, fabs(a->values[i]));
        if (isfinite(b->values[i])) largest = fmax(largest, fabs(b->values[i]));
    }
    for (int i = 0; i < a->count; i++) {
        double x = a->values[i], y = b->values[i];
        bool both_not = !isfinite(x) && !isfinite(y);
        if (x == y || both_not) continue;
        if (!(fabs(x - y) <= tolerance * fmax(1e-4 * largest, fmax(fabs(x), fabs(y))))) return true;
    }
    return false;
}

int curve_observation_differs(const struct curve_trace *a, const struct curve_trace *b, enum curve_observation observation, double tolerance)
{
    for (int step = 0; a->observed && b->observed && step < a->steps && step < b->steps; step++) {
        int at = step * OBSERVATIONS + (int)observation;
        if (differs(&a->observed[at], &b->observed[at], tolerance)) return step;
    }
    return -1;
}
