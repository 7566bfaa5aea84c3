/* context_compare: norms by rank, by head, by row. Sums in fp64, in the order of the record. */
#include "scenarios/context_compare.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/context/context.h"
#include "model/precision.h"

const char *const context_tensor_names[CONTEXT_TENSORS] = {"out", "lse", "dq", "dk", "dv", "d_sinks"};

const double context_rtol[CONTEXT_RTOLS] = {0, 1e-3, 5e-3, 2.5e-2};

const struct context_error *context_error_of(const struct context_comparison *c, int rank, enum context_tensor tensor)
{
    return &c->items[rank * CONTEXT_TENSORS + (int)tensor];
}

const struct context_error *context_error_joint(const struct context_comparison *c, int group, enum context_tensor tensor)
{
    return &c->items[(c->ranks + group) * CONTEXT_TENSORS + (int)tensor];
}

const struct context_error *context_error_sinks(const struct context_comparison *c)
{
    return &c->items[(c->ranks + c->groups) * CONTEXT_TENSORS + CONTEXT_SINKS];
}

bool context_is_joint(const struct run_config *config, int64_t position)
{
    int64_t joint = config->attention.joint;
    return config->attention.joint_rear ? position >= config->model.seq - joint : position < joint;
}

void context_holders(const struct run_config *config, const int32_t *documents, int *ret)
{
    int size = layout_cp(&config->layout);
    const struct context_layout *layout = context_layout_find(config->layout.context.layout);
    int64_t joint = config->attention.joint, seq = config->model.seq - joint, shift = config->attention.joint_rear ? 0 : joint;
    for (int64_t p = 0; p < config->model.seq; p++) ret[p] = -1;
    for (int me = 0; me < size; me++) {
        int64_t rows = context_layout_rows(layout, seq, size, me);
        int32_t *positions = memory_alloc((size_t)(rows + 1) * sizeof *positions);
        layout->positions(seq, size, me, documents ? documents + shift : NULL, positions);
        for (int64_t i = 0; i < rows; i++) ret[shift + positions[i]] = me;
        free(positions);
    }
}

/* ---- a tensor as rows of heads ---- */

/* Numbers at (b, row, head): start, how many, and how far apart. lse is [B, H, rows], the rest [B, rows, heads, D]. */
struct view { const double *data; int64_t rows; int heads; int64_t dim; bool by_head; const double *terms /* [b, row, head] */, *logits /* alike */; };

static struct view view_of(const struct attention_part *p, const struct model_config *m, enum context_tensor tensor)
{
    const double *data[] = {p->out, p->lse, p->dq, p->dk, p->dv, p->d_sinks};
    bool narrow = tensor == CONTEXT_DK || tensor == CONTEXT_DV;
    return (struct view){data[tensor], p->rows, narrow ? m->kv_heads : m->heads, tensor == CONTEXT_LSE ? 1 : m->head_dim, tensor == CONTEXT_LSE, tensor == CONTEXT_DQ ? p->dq_terms : tensor == CONTEXT_DK ? p->dk_terms : tensor == CONTEXT_DV ? p->dv_terms : tensor == CONTEXT_LSE ? p->lse_terms : NULL,
                         tensor == CONTEXT_DQ ? p->dq_logits : tensor == CONTEXT_DK ? p->dk_logits : tensor == CONTEXT_DV ? p->dv_logits : tensor == CONTEXT_OUT ? p->out_logits : NULL};
}

static const double *at(const struct view *v, int64_t b, int64_t row, int head)
{
    if (v->by_head) return v->data + (b * v->heads + head) * v->rows + row;
    return v->data + ((b * v->rows + row) * v->heads + head) * v->dim;
}

/* ---- norms ---- */

struct norms { double difference, reference, product, own, largest, largest_ref, excess[CONTEXT_RTOLS], terms, logits, weights, weights_squared; bool finite; };

/* Both -inf (a row that sees nothing) is equality. */
static void add_number(struct norms *n, double x, double ref)
{
    if (isinf(ref) && x == ref) return;
    double d = x - ref;
    if (!isfinite(d)) n->finite = false;
    if (fabs(d) > n->largest) n->largest = fabs(d);
    if (fabs(ref) > n->largest_ref) n->largest_ref = fabs(ref);
    for (int i = 0; i < CONTEXT_RTOLS; i++) n->excess[i] = fmax(n->excess[i], fabs(d) - context_rtol[i] * fabs(ref));
    n->difference += d * d;
    n->reference += ref * ref;
    n->product += x * ref;
    n->own += x * x;
}

static void add_norms(struct norms *to, const struct norms *from)
{
    to->difference += from->difference;
    to->reference += from->reference;
    to->product += from->product;
    to->own += from->own;
    to->terms += from->terms;
    to->logits += from->logits;
    to->weights += from->weights;
    to->weights_squared += from->weights_squared;
    to->finite = to->finite && from->finite;
    for (int i = 0; i < CONTEXT_RTOLS; i++) to->excess[i] = fmax(to->excess[i], from->excess[i]);
    to->largest = fmax(to->largest, from->largest);
    to->largest_ref = fmax(to->largest_ref, from->largest_ref);
}

static double rel_to(const struct norms *n, double terms)
{
    if (!n->finite) return INFINITY;
    return n->difference == 0 ? 0 : sqrt(n->difference) / fmax(fmax(sqrt(n->reference), sqrt(terms) / 2), 1e-300);
}

static double rel_of(const struct norms *n)
{
    return rel_to(n, n->terms + n->logits);
}

/* Without what large logits may leave: more than the limits then, and fp64 tells. */
static double rel_plain(const struct norms *n)
{
    return rel_to(n, n->terms);
}

/* What a tensor of this format may err by; lse is kept in storage, and no better than the softmax that it is the sum of. */
static void limits(const struct run_config *config, enum context_tensor tensor, bool narrow_softmax, double *ret_limit, double *ret_wrong)
{
    enum format storage = run_storage(config), format = tensor == CONTEXT_LSE || tensor == CONTEXT_SINKS ? storage : precision_activation(&config->precision);
    double u = format_traits[format].unit_roundoff;
    if (tensor == CONTEXT_LSE && narrow_softmax && format_traits[config->precision.softmax].unit_roundoff > u) u = format_traits[config->precision.softmax].unit_roundoff;
    if (tensor == CONTEXT_SINKS && precision_activation(&config->precision) != storage) u = format_traits[precision_activation(&config->precision)].unit_roundoff;
    if (format == FORMAT_FP64) *ret_limit = *ret_wrong = 1e-12;
    else if (format == FORMAT_FP32 && u == format_traits[FORMAT_FP32].unit_roundoff) *ret_limit = *ret_wrong = 32 * u;
    else {
        *ret_limit = 0.8 * u;
        *ret_wrong = 1.5 * u;
    }
}

double context_single_most(const struct run_config *config)
{
    return precision_is_plain(&config->precision) ? 1e-3 : 0.25;
}

/* What that allows: `times` its own error, nothing where it is wrong itself. */
static double of_single(const struct run_config *config, double error, double times)
{
    return error <= context_single_most(config) ? times * error : 0;
}

/* As many rows as would weigh alike in the norm: (sum w)^2 / sum w^2, w the square of what a row adds to its denominator. All
 * of them where they are of one size, one where one is larger than the rest by far: the norm's error is then that row's. */
static double rows_that_weigh(const struct norms *n)
{
    return n->weights_squared > 0 ? n->weights * n->weights / n->weights_squared : 0;
}

/* A norm over few numbers scatters: that of n independent roundings by 1 / sqrt(2 n) of itself. Room for some three of these
 * and, where a handful decides, for one that is larger than most, three times the limit at the most,
 * where the limit is near what a right ring errs by (0.6 to 0.73 u in 16 bits), nothing of note where a shard is not tiny;
 * 32 u of fp32 are far away from it, where they and not one rank's own error are the limit. */
static double room_for_few(const struct run_config *config, bool by_single, double numbers)
{
    bool near = by_single || format_traits[precision_activation(&config->precision)].unit_roundoff > format_traits[FORMAT_FP32].unit_roundoff;
    return !near || !(numbers > 0) ? 1 : fmin(3, 1 + 2 / sqrt(numbers) + 4 / numbers);
}

/* Of rows [rows of the call] of `x` against the reference's at their positions; joint rows alone, or all others, or all. */
enum which { WHICH_ALL, WHICH_OWN };

static void measure(const struct run_config *config, struct context_error *e, const struct view *x, const struct attention_part *part,
                    const struct view *ref, const struct view *single, enum context_tensor tensor, enum which which)
{
    struct norms all = {.finite = true}, alone = {.finite = true};
    double limit, wrong, plain, unused, worst_row = -1;
    int64_t rows = 0;
    /* What a row of a gradient errs by is mostly its delta's rounding, one for all of the row's numbers, and these are of very
     * different size: as if they were half as many. */
    double independent = tensor == CONTEXT_OUT || tensor == CONTEXT_LSE ? (double)x->dim : 0.5;
    limits(config, tensor, true, &limit, &wrong);
    /* Logits are kept in storage, or in the softmax' format: in 16 bits they are exact beside what is rounded, and
     * 1e-12 of fp64 is far above what they leave. */
    double of_logits = fmax(format_traits[run_storage(config)].unit_roundoff, format_traits[config->precision.softmax].unit_roundoff);
    double coarse = precision_activation(&config->precision) == FORMAT_FP64 ? 0 : of_logits / fmax(of_logits, format_traits[precision_activation(&config->precision)].unit_roundoff);
    limits(config, tensor, false, &plain, &unused); /* beyond it fp64 tells, and a narrow softmax is no excuse */
    *e = (struct context_error){.worst_head = -1, .worst_sequence = -1, .worst_position = -1, .single = NAN};
    double *row_error = memory_zalloc((size_t)(part->batch * part->rows + 1) * sizeof *row_error);
    for (int h = 0; h < x->heads; h++) {
        struct norms head = {.finite = true}, head_alone = {.finite = true};
        for (int64_t b = 0; b < part->batch; b++) {
            for (int64_t i = 0; i < part->rows; i++) {
                int64_t position = part->positions[b * part->rows + i], sequence = part->first_sequence + b;
                if (position < 0 || position >= ref->rows || (which == WHICH_OWN && context_is_joint(config, position))) continue;
                rows += h == 0;
                struct norms row = {.finite = true};
                const double *mine = at(x, b, i, h), *due = at(ref, sequence, position, h), *one = single->data ? at(single, sequence, position, h) : NULL;
                if (ref->terms) {
                    double terms = ref->terms[(sequence * ref->rows + position) * ref->heads + h];
                    row.terms = terms * terms;
                    head_alone.terms += terms * terms;
                }
                if (ref->logits) {
                    double terms = coarse * ref->logits[(sequence * ref->rows + position) * ref->heads + h];
                    row.logits = terms * terms;
                    head_alone.logits += terms * terms;
                }
                for (int64_t d = 0; d < x->dim; d++) {
                    add_number(&row, mine[d], due[d]);
                    if (one) add_number(&head_alone, one[d], due[d]);
                }
                double weight = fmax(row.reference, (row.terms + row.logits) / 4);
                if (isfinite(weight)) row.weights = weight, row.weights_squared = weight * weight;
                row_error[b * part->rows + i] += row.finite ? row.difference : INFINITY;
                add_norms(&head, &row);
            }
        }
        double rel = rel_of(&head), of_one = single->data ? of_single(config, rel_of(&head_alone), 2) : 0, calibrated = fmax(limit, of_one);
        e->suspect = e->suspect || !(rel_plain(&head) <= fmax(plain, of_one));
        calibrated *= room_for_few(config, of_one > limit, rows_that_weigh(&head) * independent);
        if (e->worst_head < 0 || rel / calibrated > e->worst_head_rel / e->worst_head_limit) {
            e->worst_head = h;
            e->worst_head_rel = rel;
            e->worst_head_limit = calibrated;
        }
        add_norms(&all, &head);
        add_norms(&alone, &head_alone);
    }
    for (int64_t i = 0; i < part->batch * part->rows; i++) {
        if (row_error[i] <= worst_row) continue;
        worst_row = row_error[i];
        e->worst_sequence = part->first_sequence + i / part->rows;
        e->worst_position = part->positions[i];
    }
    free(row_error);
    if (rows == 0) return;
    e->known = true;
    e->max_abs = all.finite ? all.largest : INFINITY;
    e->ref_max = all.largest_ref;
    for (int i = 0; i < CONTEXT_RTOLS; i++) e->excess[i] = all.finite ? all.excess[i] : INFINITY;
    e->rel = rel_of(&all);
    e->cosine = all.own > 0 && all.reference > 0 ? all.product / sqrt(all.own * all.reference) : all.own == all.reference;
    e->worst_row_rel = sqrt(worst_row) / fmax(sqrt(all.reference / (double)rows), 1e-300);
    e->single = single->data ? rel_of(&alone) : NAN;
    double of_one = single->data ? of_single(config, e->single, 1.35) : 0;
    e->suspect = e->suspect || !(rel_plain(&all) <= fmax(plain, of_one));
    e->limit = fmax(limit, of_one) * room_for_few(config, of_one > limit, rows_that_weigh(&all) * independent);
    bool over = !(e->rel <= e->limit) || !(e->worst_head_rel <= e->worst_head_limit);
    double by = fmax(e->rel / e->limit, e->worst_head_rel / e->worst_head_limit);
    e->wrong = over && (!(by <= wrong / limit) || wrong == limit);
    e->imprecise = over && !e->wrong;
}

/* ---- sums over a group: joint rows' gradients, sinks ---- */

static void measure_joint(const struct record *parallel, const struct attention_part *ref, const struct attention_part *single, struct context_comparison *c, int group,
                          enum context_tensor tensor)
{
    const struct run_config *config = &parallel->config;
    int64_t joint = config->attention.joint, batch = config->attention.batch, first = config->attention.joint_rear ? config->model.seq - joint : 0;
    struct view reference = view_of(ref, &config->model, tensor), alone = single ? view_of(single, &config->model, tensor) : (struct view){0};
    struct attention_part sum = {.batch = batch, .rows = joint, .first_sequence = (int64_t)group * batch};
    int64_t width = reference.heads * reference.dim;
    int32_t *positions = memory_alloc((size_t)(batch * joint + 1) * sizeof *positions);
    double *values = memory_zalloc((size_t)(batch * joint * width + 1) * sizeof *values);
    for (int64_t i = 0; i < batch * joint; i++) positions[i] = (int32_t)(first + i % joint);
    for (int m = 0; m < c->members; m++) {
        const struct attention_part *part = parallel->rank[group * c->members + m].attention;
        struct view mine = view_of(part, &config->model, tensor);
        for (int64_t i = 0; i < part->batch * part->rows; i++) {
            int64_t position = part->positions[i], to = i / part->rows * joint + position - first;
            if (!context_is_joint(config, position)) continue;
            for (int64_t j = 0; j < width; j++) values[to * width + j] += mine.data[i * width + j];
        }
    }
    sum.positions = positions;
    struct view x = {values, joint, reference.heads, reference.dim, false, NULL, NULL};
    measure(config, &c->items[(c->ranks + group) * CONTEXT_TENSORS + (int)tensor], &x, &sum, &reference, &alone, tensor, WHICH_ALL);
    free(values);
    free(positions);
}

/* A sink has one number a head, a sum over all rows of signed terms: where they cancel, what is left is how out was rounded, as with
 * dq and dk, and no relative error of it means anything. So the terms' magnitudes are its floor, here too. */
static void measure_sinks(const struct record *parallel, const struct attention_part *ref, struct context_comparison *c)
{
    struct context_error *e = &c->items[(c->ranks + c->groups) * CONTEXT_TENSORS + CONTEXT_SINKS];
    struct norms n = {.finite = true};
    double wrong;
    if (!ref->d_sinks || !parallel->rank[0].attention->d_sinks) return;
    for (int h = 0; h < parallel->config.model.heads; h++) {
        double sum = 0;
        for (int r = 0; r < c->ranks; r++) sum += parallel->rank[r].attention->d_sinks[h];
        add_number(&n, sum, ref->d_sinks[h]);
        if (ref->sink_terms) n.terms += ref->sink_terms[h] * ref->sink_terms[h];
    }
    *e = (struct context_error){.known = true, .max_abs = n.largest, .ref_max = n.largest_ref, .rel = rel_of(&n), .cosine = 1, .worst_head = -1, .worst_sequence = -1, .worst_position = -1, .single = NAN};
    limits(&parallel->config, CONTEXT_SINKS, true, &e->limit, &wrong);
    e->limit *= 4; /* a sum of signed terms over all rows of all ranks */
    e->wrong = !(e->rel <= e->limit);
    e->worst_head_rel = e->rel;
    e->worst_head_limit = e->limit;
}

struct context_comparison *context_comparison_new(const struct record *parallel, const struct record *reference, const struct record *single)
{
    struct arena *arena = arena_new("context comparison", false);
    struct context_comparison *c = arena_zalloc(arena, sizeof *c);
    const struct run_config *config = &parallel->config;
    *c = (struct context_comparison){.ranks = parallel->ranks, .groups = config->layout.dp_replicate, .members = layout_cp(&config->layout),
        .roundoff = format_traits[precision_activation(&config->precision)].unit_roundoff, .arena = arena};
    c->items = arena_zalloc(arena, (size_t)((c->ranks + c->groups + 1) * CONTEXT_TENSORS) * sizeof *c->items);
    const struct attention_part *ref = reference->rank[0].attention, *alone = single ? single->rank[0].attention : NULL;
    for (int r = 0; r < c->ranks; r++) {
        const struct attention_part *part = parallel->rank[r].attention;
        for (int t = 0; t < CONTEXT_SINKS; t++) {
            struct view x = view_of(part, &config->model, (enum context_tensor)t), due = view_of(ref, &config->model, (enum context_tensor)t);
            struct view one = alone ? view_of(alone, &config->model, (enum context_tensor)t) : (struct view){0};
            if (!x.data || !due.data) continue;
            measure(config, &c->items[r * CONTEXT_TENSORS + t], &x, part, &due, &one, (enum context_tensor)t, t >= CONTEXT_DQ ? WHICH_OWN : WHICH_ALL);
        }
    }
    for (int g = 0; g < c->groups && config->attention.joint > 0 && ref->dq && parallel->rank[0].attention->dq; g++) {
        for (int t = CONTEXT_DQ; t <= CONTEXT_DV; t++) measure_joint(parallel, ref, alone, c, g, (enum context_tensor)t);
    }
    measure_sinks(parallel, ref, c);
    return c;
}

void context_comparison_free(struct context_comparison *comparison)
{
    if (comparison) arena_free(comparison->arena);
}

bool context_comparison_any(const struct context_comparison *c, enum context_tensor tensor)
{
    for (int r = 0; r < c->ranks + c->groups + 1; r++) {
        const struct context_error *e = &c->items[r * CONTEXT_TENSORS + (int)tensor];
        if (e->known && (e->wrong || e->imprecise)) return true;
    }
    return false;
}

bool context_comparison_suspect(const struct context_comparison *c)
{
    for (int i = 0; i < (c->ranks + c->groups + 1) * CONTEXT_TENSORS; i++) {
        if (c->items[i].known && c->items[i].suspect) return true;
    }
    return context_comparison_fails(c);
}

bool context_comparison_fails(const struct context_comparison *c)
{
    for (int t = 0; t < CONTEXT_TENSORS; t++) {
        if (context_comparison_any(c, (enum context_tensor)t)) return true;
    }
    return false;
}

/* ---- how errors are spread ---- */

/* The first of which a rank is wrong; 0 where none is. */
static int wrong_group(const struct context_comparison *c, enum context_tensor tensor)
{
    for (int r = 0; r < c->ranks; r++) {
        const struct context_error *e = context_error_of(c, r, tensor);
        if (e->known && (e->wrong || e->imprecise)) return r / c->members;
    }
    return 0;
}

struct context_shape_of_errors context_error_shape(const struct context_comparison *c, enum context_tensor tensor)
{
    int wrong = 0, members = c->members, first = -1, exact = -1, group = wrong_group(c, tensor), from = group * members;
    double least = INFINITY, most = 0, up = 0, down = 0;
    bool first_is_right = false, last_is_right = false;
    for (int m = 0; m < members; m++) {
        const struct context_error *e = context_error_of(c, from + m, tensor);
        double rel = e->known ? fmin(e->rel, 1e30) : 0;
        bool bad = e->known && (e->wrong || e->imprecise);
        wrong += bad;
        if (bad && first < 0) first = m;
        if (!bad && exact < 0) exact = m;
        if (m == 0) first_is_right = !bad;
        if (m == members - 1) last_is_right = !bad;
        least = fmin(least, rel);
        most = fmax(most, rel);
        if (m > 0) {
            const struct context_error *before = context_error_of(c, from + m - 1, tensor);
            double was = before->known ? fmin(before->rel, 1e30) : 0;
            up += rel > 1.02 * was;
            down += rel < 0.98 * was;
        }
    }
    if (wrong == 0) return (struct context_shape_of_errors){"none", "all ranks are right"};
    if (members == 1) return (struct context_shape_of_errors){"one rank", "there is only one: the attention itself is wrong, not its split"};
    if (wrong == 1) return (struct context_shape_of_errors){"one rank", "one member does something else than the others: its step, its shard, its call"};
    if (wrong == members - 1 && last_is_right)
        return (struct context_shape_of_errors){"all but the last rank", "the later a rank, the less it misses: blocks behind a rank's own are left out as under a causal mask, or the last rank alone gets something"};
    if (wrong == members - 1 && first_is_right)
        return (struct context_shape_of_errors){"all but the first rank", "rank 0 needs nothing of the others under a causal contiguous layout, or positions begin at 0 on every rank"};
    if (wrong == members - 1) return (struct context_shape_of_errors){"all but one rank", "one member is served otherwise than the rest"};
    if (down == members - 1) return (struct context_shape_of_errors){"falls with the rank", "errors grow with P - 1 - rank: blocks behind a rank's own are left out as under a causal mask"};
    if (up == members - 1) return (struct context_shape_of_errors){"grows with the rank", "the more a rank has to merge, the more it is wrong: the merge, or blocks before its own"};
    if (most <= 1.5 * least) return (struct context_shape_of_errors){"constant", "the same on every rank: a step that all do, a merge, a format, a factor"};
    return (struct context_shape_of_errors){"mixed", "ranks differ by which keys they see: look at who consumed whose chunks"};
}
