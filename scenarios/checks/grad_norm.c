/* grad-norm: the norm counts each gradient element once, and all ranks clip with one coefficient.
 *
 *     norm = sqrt(sum over ranks of the squares of what each owns), or (train.grad_norm inf) the largest over ranks of
 *     the largest magnitude that each owns,  coefficient = min(1, max_norm / (norm + 1e-6))
 * Against its own inputs: each rank's norm against the sum of all ranks' squares (fp64, another order:
 * 1e-9), its coefficient against its norm (1e-12), and, bit by bit, against the other ranks'. Beside that the
 * norm of the standalone run, by the ladder: it has no site, since a wrong gradient comes from further up.
 * Sites: clip.norm_reduce; before it clip.parameters, clip.gradient, clip.empty_shard, clip.squares, clip.group, where a
 * rank went through other gradients, read others, took something from a shard without elements, counted them otherwise or
 * meant another group; clip.coefficient. */
#include <math.h>
#include <stdio.h>

#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/compare.h"
#include "scenarios/ratio.h"

/* Ranks' parts, one more of them. */
static double joined(const struct record *record, double so_far, double part)
{
    return record->config.train.grad_norm == GRAD_NORM_INF ? fmax(so_far, part) : so_far + part;
}

static double norm_from(const struct record *record, double sum)
{
    return record->config.train.grad_norm == GRAD_NORM_INF ? sum : sqrt(sum);
}

static double sum_of_parts(const struct record *record, int step, bool *ret_all)
{
    double sum = 0;
    *ret_all = true;
    for (int r = 0; r < record->ranks; r++) {
        const struct norm_fact *fact = facts_norm(&record->rank[r], step);
        if (!fact) *ret_all = false;
        else if (record->config.layout.zero == ZERO_0 || record->rank[r].replicate == 0) sum = joined(record, sum, fact->local);
    }
    return sum;
}

/* Is the norm what one stage alone would give? */
static bool is_of_own_stage(const struct record *record, const struct rank_record *rank, const struct norm_fact *fact)
{
    double sum = 0;
    for (int r = 0; r < record->ranks; r++) {
        const struct norm_fact *other = facts_norm(&record->rank[r], fact->step);
        if (other && record->rank[r].stage == rank->stage && record->rank[r].replicate == 0)
            sum = joined(record, sum, other->local);
    }
    return record->config.layout.pp > 1 && isfinite(fact->norm) && fabs(fact->norm - norm_from(record, sum)) <= 1e-9 * fact->norm;
}

/* The first thing in the making of the norm that is not as due, on any rank that is in it. */
static const struct site *norm_site(const struct record *record, int step)
{
    static const struct site *const sites[] = {&site_clip_parameters, &site_clip_gradient, &site_clip_empty_shard};
    const struct layout *layout = &record->config.layout;
    int members = (layout->zero == ZERO_0 && layout_ep(layout) == 1 ? layout->pp : layout->pp * layout_shards(layout)) * layout->tp;
    for (int k = 0; k < 3; k++) {
        for (int r = 0; r < record->ranks; r++) {
            if (facts_was_chosen(&record->rank[r], sites[k], step, -1)) return sites[k];
        }
    }
    for (int r = 0; r < record->ranks; r++) {
        const struct norm_fact *fact = facts_norm(&record->rank[r], step);
        if (fact && fact->counted != 1) return &site_clip_squares;
    }
    for (int r = 0; r < record->ranks; r++) {
        const struct norm_fact *fact = facts_norm(&record->rank[r], step);
        if (fact && fact->members != members) return &site_clip_group;
    }
    return &site_clip_norm_reduce;
}

static void check_norm(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                       const struct norm_fact *fact, double due)
{
    double error = due == fact->norm ? 0 : fabs(fact->norm - due) / fmax(due, 1e-300);
    check_value(output, error, 1e-9);
    if (error <= 1e-9) return;
    struct finding finding = finding_new(norm_site(e->parallel, fact->step), place_at(rank->rank, fact->step, -1));
    bool own = is_of_own_stage(e->parallel, rank, fact);
    finding.expected = due;
    finding.got = fact->norm;
    finding.ratio_value = fact->norm / due;
    finding_pattern(&finding, own ? "per-stage" : "other-sum");
    finding_say(&finding,
                "rank %d takes %.9g as the gradient norm of step %d where all ranks' parts give %.9g%s",
                rank->rank, fact->norm, fact->step, due, own ? ": it counted its own pipeline stage alone" : "");
    check_find(output, &finding);
}

static void check_coefficient(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                              const struct norm_fact *fact)
{
    const struct record *record = e->parallel;
    double clip = record->config.train.grad_clip, due = clip > 0 ? fmin(1, clip / (fact->norm + 1e-6)) : 1;
    double error = fact->coefficient == due ? 0 : fabs(fact->coefficient - due) / due; /* 0 where the norm is infinite */
    if (isnan(due) && isnan(fact->coefficient)) return;
    check_value(output, error, 1e-12);
    if (error <= 1e-12) return;
    struct ratio_sample sample = {facts_numbers(record, rank->data_rank, fact->step, -1), fact->coefficient / due};
    struct ratio_form form = ratio_classify(&sample, 1, 'D', 3, 1e-9);
    struct finding finding = finding_new(&site_clip_coefficient, place_at(rank->rank, fact->step, -1));
    finding.expected = due;
    finding.got = fact->coefficient;
    snprintf(finding.ratio, sizeof finding.ratio, "%s", form.text);
    finding.ratio_value = sample.value;
    finding_pattern(&finding, form.text);
    finding_say(&finding,
                "rank %d multiplies its gradients by %.9g in step %d where a norm of %.9g and grad_clip %g give %.9g",
                rank->rank, fact->coefficient, fact->step, fact->norm, clip, due);
    check_find(output, &finding);
}

/* One norm everywhere, to the bit: the reduction gives all ranks one number. */
static void check_equal(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                        const struct norm_fact *fact, double due)
{
    const struct norm_fact *first = facts_norm(&e->parallel->rank[0], fact->step);
    if (!first || first->norm == fact->norm || (isnan(first->norm) && isnan(fact->norm))) return;
    if (fabs(fact->norm - due) > 1e-9 * due || fabs(first->norm - due) > 1e-9 * due) return; /* told by the sum */
    struct finding finding = finding_new(&site_clip_norm_reduce, place_at(rank->rank, fact->step, -1));
    finding.expected = first->norm;
    finding.got = fact->norm;
    finding_pattern(&finding, "copies-differ");
    finding_say(&finding, "ranks 0 and %d clip step %d with norms that differ in their last bits (%.17g, %.17g)",
                rank->rank, fact->step, first->norm, fact->norm);
    check_value(output, fabs(first->norm - fact->norm), 0);
    check_find(output, &finding);
}

static void check_reference(const struct evidence *e, struct check_output *output, int step)
{
    const struct comparison *c = e->comparison;
    if (!c || !c->norm[step].known || !c->norm[step].wrong) return;
    const struct comparison_step *s = &c->step[step];
    struct ratio_sample sample = {facts_numbers(e->parallel, 0, step, -1), s->norm_parallel / s->norm_standalone};
    struct ratio_form form = ratio_classify(&sample, 1, 'M', 2, 1e-4);
    struct finding finding = finding_new(NULL, place_at(-1, step, -1));
    finding.expected = s->norm_standalone;
    finding.got = s->norm_parallel;
    snprintf(finding.ratio, sizeof finding.ratio, "%s", form.text);
    finding.ratio_value = sample.value;
    finding_say(&finding, "the gradient norm of step %d is %.9g, standalone %.9g", step, s->norm_parallel,
                s->norm_standalone);
    check_value(output, c->norm[step].error, c->norm[step].limit);
    check_find(output, &finding);
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    for (int step = 0; step < record->config.train.steps; step++) {
        bool all;
        double due = norm_from(record, sum_of_parts(record, step, &all));
        for (int r = 0; r < record->ranks; r++) {
            const struct norm_fact *fact = facts_norm(&record->rank[r], step);
            const struct scale_fact *scale = facts_scale(&record->rank[r], step);
            if (!fact || (scale && scale->found)) continue; /* not finite, and known to be */
            if (all) check_norm(e, output, &record->rank[r], fact, due);
            check_coefficient(e, output, &record->rank[r], fact);
            if (all) check_equal(e, output, &record->rank[r], fact, due);
        }
        check_reference(e, output, step);
    }
}

const struct check check_grad_norm = {
    .id = "grad-norm",
    .proves = "the gradient norm counts each element once, equals the standalone norm, and all ranks clip with one "
              "coefficient",
    .tier = "default",
    .run = run,
};
