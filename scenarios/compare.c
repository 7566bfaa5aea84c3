/* compare: losses and norms, the dense tables, the ladder's verdicts. */
#include "scenarios/compare.h"

#include <math.h>
#include <stdlib.h>

#include "scenarios/ladder.h"
#include "sim/assertion.h"

double largest_of(double a, double b)
{
    return isnan(a) || a >= b ? a : b;
}

void difference_set(struct comparison *c, struct difference *d, double error, double terms_count, double allowance)
{
    d->known = true;
    d->error = error;
    d->error_other = NAN;
    d->terms_count = terms_count;
    d->allowance = allowance;
    d->limit = ladder_screen(run_storage(&c->parallel->config), terms_count) + allowance;
    d->above_screen = !(error <= d->limit);
    d->wrong = d->above_screen;
}

double comparison_total_loss(const struct record *record, int step)
{
    double sum = 0;
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].losses.count; i++) {
            const struct loss_fact *fact = &record->rank[r].losses.items[i];
            if (fact->step == step && facts_is_first_reader(record, &record->rank[r])) sum += fact->backward_loss; /* the others have the same loss */
        }
    }
    return sum / facts_divisor_due(&record->config);
}

/* least: the size of the terms behind it, where the quantity itself may all but cancel. */
static void compare_scalar(struct comparison *c, struct difference *d, double a, double b, double least, double terms_count)
{
    *d = (struct difference){.rank = -1};
    bool same = a == b;
    difference_set(c, d, same ? 0 : fabs(a - b) / fmax(fabs(b), least), terms_count, 0);
    d->ratio = a / b;
    d->residual = 0;
}

bool comparison_left_out(const struct record *record, int step)
{
    const struct scale_fact *scale = facts_scale(&record->rank[0], step);
    return scale && scale->skipped;
}

static void compare_step(struct comparison *c, int step)
{
    const struct record *a = c->parallel, *b = c->standalone;
    struct comparison_step *s = &c->step[step];
    double terms = facts_tokens(b, step).positions * (step + 1) * (step + 1);
    const struct report_fact *report = facts_report(&a->rank[0], step);
    const struct norm_fact *norm_a = facts_norm(&a->rank[0], step), *norm_b = facts_norm(&b->rank[0], step);
    s->loss_parallel = comparison_total_loss(a, step);
    s->loss_standalone = comparison_total_loss(b, step);
    s->loss_logged = report ? report->logged : NAN;
    s->norm_parallel = norm_a ? norm_a->norm : NAN;
    s->norm_standalone = norm_b ? norm_b->norm : NAN;
    compare_scalar(c, &c->loss[step], s->loss_parallel, s->loss_standalone, 1, terms);
    bool left_out = comparison_left_out(a, step) && comparison_left_out(b, step);
    if (norm_a && norm_b && !left_out) compare_scalar(c, &c->norm[step], norm_a->norm, norm_b->norm, 1e-300, terms);
    for (int p = 0; p < c->params; p++) {
        const struct difference *gradient = &c->gradient[step * c->params + p],
                                *param = &c->param[(step + 1) * c->params + p];
        if (gradient->known) s->max_gradient_error = largest_of(s->max_gradient_error, gradient->error);
        if (param->known) s->max_param_error = largest_of(s->max_param_error, param->error);
    }
}

struct comparison *comparison_new(const struct record *parallel, const struct record *standalone)
{
    ASSERT(facts_finished(parallel) && facts_finished(standalone));
    ASSERT(parallel->params.count == standalone->params.count);
    struct arena *arena = arena_new("comparison", false);
    struct comparison *c = arena_zalloc(arena, sizeof *c);
    c->arena = arena;
    c->parallel = parallel;
    c->standalone = standalone;
    c->steps = parallel->config.train.steps;
    c->units = unit_count(&parallel->config.model);
    c->sequences = parallel->config.train.global_batch;
    c->params = parallel->params.count;
    size_t steps = (size_t)c->steps, cells = steps * (size_t)c->units * (size_t)c->sequences;
    c->step = arena_zalloc(arena, steps * sizeof *c->step);
    c->loss = arena_zalloc(arena, steps * sizeof *c->loss);
    c->norm = arena_zalloc(arena, steps * sizeof *c->norm);
    c->forward = arena_zalloc(arena, cells * sizeof *c->forward);
    c->backward = arena_zalloc(arena, cells * sizeof *c->backward);
    c->gradient = arena_zalloc(arena, steps * (size_t)c->params * sizeof *c->gradient);
    c->param = arena_zalloc(arena, (steps + 1) * (size_t)c->params * sizeof *c->param);
    compare_tensors(c);
    compare_activations(c);
    for (int step = 0; step < c->steps; step++) compare_step(c, step);
    return c;
}

void comparison_free(struct comparison *comparison)
{
    if (comparison) arena_free(comparison->arena);
}

/* The tables one behind the other, for what is done to every difference alike. */
struct difference_table { struct difference *items; size_t count; };
enum { TABLES = 6 };

static void list_tables(const struct comparison *c, struct difference_table tables[TABLES])
{
    size_t steps = (size_t)c->steps, cells = steps * (size_t)c->units * (size_t)c->sequences,
           params = (size_t)c->params;
    tables[0] = (struct difference_table){c->loss, steps};
    tables[1] = (struct difference_table){c->norm, steps};
    tables[2] = (struct difference_table){c->forward, cells};
    tables[3] = (struct difference_table){c->backward, cells};
    tables[4] = (struct difference_table){c->gradient, steps * params};
    tables[5] = (struct difference_table){c->param, (steps + 1) * params};
}

bool comparison_needs_other(const struct comparison *comparison)
{
    for (int step = 0; step < comparison->steps; step++) {
        if (comparison_left_out(comparison->parallel, step)) return true; /* the other rung looks at that step */
    }
    struct difference_table tables[TABLES];
    list_tables(comparison, tables);
    for (int t = 0; t < TABLES; t++) {
        for (size_t i = 0; i < tables[t].count; i++) {
            if (tables[t].items[i].known && tables[t].items[i].above_screen) return true;
        }
    }
    return false;
}

/* How far the parameters before each step are apart, all of them together, at one rung. */
static double params_error(const struct comparison *c, int step)
{
    double difference = 0, size = 0;
    for (int p = 0; p < c->params; p++) {
        const struct difference *d = &c->param[step * c->params + p];
        if (!d->known) continue;
        difference += d->error * d->size * d->error * d->size;
        size += d->size * d->size;
    }
    return size > 0 ? sqrt(difference / size) : 0;
}

/* The step whose parameters go into an item; -1: the initial parameters themselves. */
static int step_of_item(const struct comparison *c, int table, size_t i)
{
    size_t cells = (size_t)c->units * (size_t)c->sequences, params = (size_t)c->params;
    if (table < 2) return (int)i;
    if (table < 4) return (int)(i / cells);
    return table == 4 ? (int)(i / params) : (int)(i / params) - 1;
}

/* What a step makes of a difference that was there before it: see ladder.h. */
static double inherited(const struct comparison *c, const double *before, int table, size_t i)
{
    int step = step_of_item(c, table, i);
    return step < 0 ? 0 : LADDER_INHERITED_GAIN * before[step];
}

/* What this rung's runs left out, since it was not finite, is judged by the fp64 pair alone. */
static void take_other_alone(struct difference *d, const struct difference *theirs, const double *allowance, double inherited_part)
{
    *d = *theirs;
    d->error_other = theirs->error;
    d->limit = ladder_limit(0, d->terms_count) + *allowance + inherited_part;
    d->wrong = d->error != 0 && !(d->error <= d->limit);
}

void comparison_add_other(struct comparison *comparison, const struct record *parallel, const struct record *standalone)
{
    struct comparison *other = comparison_new(parallel, standalone);
    ASSERT(other->steps == comparison->steps && other->params == comparison->params);
    bool working_is_64 = precision_is(&comparison->parallel->config.precision, FORMAT_FP64);
    struct difference_table mine[TABLES], theirs[TABLES];
    list_tables(comparison, mine);
    list_tables(other, theirs);
    double *before = arena_alloc(comparison->arena, (size_t)(comparison->steps + 1) * sizeof *before);
    for (int step = 0; step < comparison->steps; step++) before[step] = params_error(working_is_64 ? comparison : other, step);
    for (int t = 0; t < TABLES; t++) {
        for (size_t i = 0; i < mine[t].count; i++) {
            struct difference *d = &mine[t].items[i];
            if (!working_is_64 && !d->known && theirs[t].items[i].known) { /* left out here (loss scaling), not there */
                take_other_alone(d, &theirs[t].items[i], &theirs[t].items[i].allowance, inherited(comparison, before, t, i));
                continue;
            }
            if (!d->known || !theirs[t].items[i].known) continue;
            d->error_other = theirs[t].items[i].error;
            double error_32 = working_is_64 ? d->error_other : d->error,
                   error_64 = working_is_64 ? d->error : d->error_other;
            double allowance = working_is_64 ? d->allowance : theirs[t].items[i].allowance;
            d->limit = ladder_limit(error_32, d->terms_count) + allowance + inherited(comparison, before, t, i);
            d->wrong = !isfinite(d->error) /* one of the two alone is */ ||
                       (d->error != 0 /* it does differ, on the rung that was asked for */ &&
                        ladder_is_bug(error_32, error_64, d->terms_count) && !(error_64 <= d->limit));
        }
    }
    comparison->has_other = true;
    comparison_free(other);
}

static const struct difference *at(const struct difference *table, size_t i)
{
    return table[i].known ? &table[i] : NULL;
}

static bool cell(const struct comparison *c, int step, int unit, int sequence, size_t *ret_i)
{
    if (step < 0 || step >= c->steps || unit < 0 || unit >= c->units || sequence < 0 || sequence >= c->sequences)
        return false;
    *ret_i = ((size_t)step * (size_t)c->units + (size_t)unit) * (size_t)c->sequences + (size_t)sequence;
    return true;
}

const struct difference *comparison_forward(const struct comparison *c, int step, int unit, int sequence)
{
    size_t i;
    return cell(c, step, unit, sequence, &i) ? at(c->forward, i) : NULL;
}

const struct difference *comparison_backward(const struct comparison *c, int step, int unit, int sequence)
{
    size_t i;
    return cell(c, step, unit, sequence, &i) ? at(c->backward, i) : NULL;
}

const struct difference *comparison_gradient(const struct comparison *c, int step, int param)
{
    return step < 0 || step >= c->steps ? NULL : at(c->gradient, (size_t)step * (size_t)c->params + (size_t)param);
}

const struct difference *comparison_param(const struct comparison *c, int step, int param)
{
    return step < -1 || step >= c->steps ? NULL : at(c->param, (size_t)(step + 1) * (size_t)c->params + (size_t)param);
}

static bool param_of_unit(const struct comparison *c, int param, int unit)
{
    int lives = c->parallel->params.params[param].unit;
    return unit_boundary(&c->parallel->config.model, lives) == unit || (unit == c->units - 1 && lives == 0 && c->parallel->config.model.tie_embeddings);
}

bool comparison_unit_params_agree(const struct comparison *c, int step, int unit)
{
    for (int p = 0; p < c->params; p++) {
        const struct difference *d = comparison_param(c, step, p);
        if (param_of_unit(c, p, unit) && d && d->wrong) return false;
    }
    return true;
}

double comparison_unit_params_error(const struct comparison *c, int step, int unit)
{
    double largest = 0;
    for (int p = 0; p < c->params; p++) {
        const struct difference *d = comparison_param(c, step, p);
        if (param_of_unit(c, p, unit) && d) largest = largest_of(largest, d->error);
    }
    return largest;
}
