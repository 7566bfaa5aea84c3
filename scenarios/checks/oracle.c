/* oracle: the parallel run computes what one rank computes.
 *
 * Everything that has a counterpart (compare.h) by the precision ladder (ladder.h): losses, every gradient after
 * reduction, the norm, every parameter after the update, activations and their gradients at the boundaries of
 * units. A difference gets a site where its own inputs agree:
 *   layer.forward          a unit's output, where its input, its parameters and their versions agree
 *   layer.backward         a unit's input gradient, per weight of its tokens, where output gradient, input and
 *                          parameters agree
 *   layer.weight_gradient  a parameter's gradient, where both of these agree for all sequences, every weight is
 *                          due and the reduction gave the sum of what went in
 *                          (where something on the gradient's way was decided otherwise than is due, or not used whole,
 *                          that: dp.zero_grad .. optimizer.gradients; it may be within what a narrow format rounds)
 *   clip.norm_reduce       the norm, where all gradients agree
 *   labels                 the head's output, where the rows are due and their targets are not the data's
 *   init.values            a parameter before the first step
 *   optimizer.update       a parameter, where gradient, norm and value before agree
 * What only follows from a difference further up has none, and is told once a step. */
#include <math.h>
#include <stdio.h>

#include "model/data.h"
#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/context_due.h"
#include "scenarios/context_checks.h"
#include "scenarios/compare.h"
#include "scenarios/initial_values.h"
#include "scenarios/oracle_inputs.h"
#include "scenarios/ratio.h"
#include "scenarios/routing_follow.h"

static double ladder_error(const struct comparison *c, const struct difference *d)
{
    return c->has_other && !precision_is(&c->parallel->config.precision, FORMAT_FP64) && !isnan(d->error_other) ? d->error_other
                                                                                               : d->error;
}

static bool judge(const struct comparison *c, struct check_output *output, const struct difference *d)
{
    if (!d) return false;
    check_value(output, ladder_error(c, d), d->limit);
    return d->wrong;
}

static void set_ratio(const struct evidence *e, struct finding *finding, const struct difference *d, int step)
{
    finding->expected = 0;
    finding->got = d->error;
    if (!(d->residual <= 1e-3) || fabs(d->ratio - 1) <= 1e-3) return;
    struct ratio_sample sample = {facts_numbers(e->parallel, 0, step, -1), d->ratio};
    struct ratio_form form = ratio_classify(&sample, 1, 'M', 2, 1e-4);
    snprintf(finding->ratio, sizeof finding->ratio, "%s", form.text);
    finding->ratio_value = d->ratio;
}

/* The rows that a micro-batch read are due, and their targets are not the data's: what the head compares with. */
static bool reads_other_targets(const struct evidence *e, int step, int rank, int microbatch)
{
    const struct run_config *config = &e->parallel->config;
    const struct sample_fact *fact = facts_sample(&e->parallel->rank[rank], step, microbatch);
    if (!fact || !facts_sample_is_due(e->parallel, step, e->parallel->rank[rank].data_rank, microbatch)) return false;
    struct arena *arena = arena_new("oracle's targets", false);
    struct data data = data_pack(&config->data, config->model.seq, (int64_t)config->train.steps * config->train.global_batch, arena);
    bool others = !facts_targets_are_due(fact, &data);
    arena_free(arena);
    return others;
}

static const struct site *labels_site(const struct rank_record *rank, int step)
{
    return facts_was_chosen(rank, &site_cp_labels, step, -1) ? &site_cp_labels : &site_labels;
}

static void find_forward(const struct evidence *e, struct check_output *output, int step)
{
    const struct comparison *c = e->comparison;
    bool consequence = false, caused = false;
    for (int unit = 0; unit < c->units; unit++) {
        for (int sequence = 0; sequence < c->sequences; sequence++) {
            const struct difference *d = comparison_forward(c, step, unit, sequence);
            if (!judge(c, output, d)) continue;
            if (!oracle_forward_inputs_agree(c, step, unit, sequence)) {
                consequence = true;
                continue;
            }
            caused = true;
            int microbatch = facts_place_of(e->parallel, sequence).microbatch;
            bool labels = unit == c->units - 1 && reads_other_targets(e, step, d->rank, microbatch);
            int rank = d->rank;
            const struct site *decision = context_decision(e->parallel, step, unit, &rank);
            const struct site *site = labels ? labels_site(&e->parallel->rank[d->rank], step) : decision ? decision : &site_layer_forward;
            struct finding finding = finding_new(site, place_at_unit(&e->parallel->config, rank, step, microbatch, unit));
            char name[32];
            unit_name(&e->parallel->config.model, unit, name);
            set_ratio(e, &finding, d, step);
            double by = 0;
            bool split = site == &site_layer_forward && step == 0 && context_attention_differs_first(e, unit, sequence, &by);
            char more[160] = "";
            if (labels) snprintf(more, sizeof more, ": its targets are others than the data's");
            if (split) snprintf(more, sizeof more, ": inside, queries, keys and values are equal to the bit, and the split attention's output is not (its squared norm by %.3g)", by);
            if (split && !isfinite(by)) snprintf(more, sizeof more, ": inside, queries, keys and values are equal to the bit, and the split attention's output is not finite");
            finding_pattern(&finding, labels ? "other-targets" : split ? "split-attention" : "altered");
            finding_say(&finding,
                        "in step %d on rank %d the output of %s for sequence %d differs from standalone by %.3g though "
                        "its input and parameters agree%s",
                        step, rank, name, sequence, d->error, more);
            check_find(output, &finding);
        }
    }
    if (!consequence || caused) return;
    struct finding finding = finding_new(NULL, place_at(-1, step, -1));
    finding_say(&finding, "activations of step %d differ from standalone, as what they are computed from does", step);
    check_find(output, &finding);
}

static void find_backward(const struct evidence *e, struct check_output *output, int step)
{
    const struct comparison *c = e->comparison;
    for (int unit = c->units - 1; unit >= 1; unit--) {
        for (int sequence = 0; sequence < c->sequences; sequence++) {
            const struct difference *d = comparison_backward(c, step, unit, sequence);
            if (!judge(c, output, d) || !oracle_backward_inputs_agree(c, step, unit, sequence)) continue;
            int microbatch = facts_place_of(e->parallel, sequence).microbatch;
            int rank = d->rank;
            const struct site *decision = context_decision(e->parallel, step, unit, &rank);
            struct finding finding = finding_new(decision ? decision : &site_layer_backward, place_at_unit(&e->parallel->config, rank, step, microbatch, unit));
            char name[32];
            unit_name(&e->parallel->config.model, unit, name);
            set_ratio(e, &finding, d, step);
            finding_pattern(&finding, "altered");
            finding_say(&finding,
                        "in step %d on rank %d the input gradient of %s for sequence %d differs from standalone by "
                        "%.3g though its output gradient, input and parameters agree",
                        step, rank, name, sequence, d->error);
            check_find(output, &finding);
        }
    }
}

/* Whose rows differ; of a weight gradient, since it went wrong before it was reduced: all data ranks of the stage. */
static bool is_concerned(const struct evidence *e, const struct site *site, const struct difference *d, int rank,
                         int param)
{
    if (site == &site_layer_weight_gradient) return record_has_param(e->parallel, &e->parallel->rank[rank], param);
    for (int i = 0; i < d->ranks_count; i++) {
        if (d->ranks[i] == rank) return true;
    }
    return d->ranks_count == 0 && d->rank == rank;
}

static void find_tensor(const struct evidence *e, struct check_output *output, const struct site *site, int step,
                        int param, const struct difference *d, const char *text)
{
    const struct param *p = &e->parallel->params.params[param];
    for (int rank = 0; rank < e->parallel->ranks; rank++) {
        if (!is_concerned(e, site, d, rank, param)) continue;
        struct finding finding = finding_new(site, place_at_unit(&e->parallel->config, rank, step, -1, p->unit));
        finding.place.param = p->info.name;
        set_ratio(e, &finding, d, step);
        finding_pattern(&finding, "altered");
        finding_say(&finding, text, step, p->info.name, rank, d->error);
        check_find(output, &finding);
    }
}

/* What was decided otherwise, or not used whole, on this rank between the unit's backward and its update. */
static const struct site *chosen_on_the_way(const struct rank_record *rank, int step, int unit)
{
    static const struct site *const sites[] = {&site_dp_zero_grad, &site_dp_grad_add, &site_dp_reduce_source, &site_dp_grad_reset, &site_ep_weight_gradient,
                                               &site_dp_bucket, &site_hsdp_accumulate, &site_hsdp_replicate, &site_optimizer_gradients};
    for (size_t i = 0; i < sizeof sites / sizeof sites[0]; i++) {
        if (facts_was_chosen(rank, sites[i], step, unit)) return sites[i];
    }
    return NULL;
}

/* A gradient differs: the ranks on which something of that kind happened to it. False: none. */
static bool find_chosen(const struct evidence *e, struct check_output *output, int step, int param, const struct difference *d)
{
    const struct param *p = &e->parallel->params.params[param];
    bool any = false;
    for (int r = 0; r < e->parallel->ranks; r++) {
        const struct site *site = chosen_on_the_way(&e->parallel->rank[r], step, p->unit);
        if (!site) continue;
        struct finding finding = finding_new(site, place_at_unit(&e->parallel->config, r, step, -1, p->unit));
        finding.place.param = p->info.name;
        set_ratio(e, &finding, d, step);
        finding_say(&finding, "in step %d the gradient of %s differs from standalone by %.3g, and on rank %d something else was done "
                    "with it than is due", step, p->info.name, d->error, r);
        check_find(output, &finding);
        any = true;
    }
    return any;
}

/* What follows from something else, once a step: how many, and the largest. */
static void find_consequence(const struct evidence *e, struct check_output *output, int step, int count, int param,
                             const struct difference *d, const char *what)
{
    if (count == 0) return;
    struct finding finding = finding_new(NULL, place_at(-1, step, -1));
    finding.place.param = e->parallel->params.params[param].info.name;
    set_ratio(e, &finding, d, step);
    finding_say(&finding, "%d of %d %s of step %d differ from standalone, %s most, by a relative %.3g%s%s%s", count,
                e->comparison->params, what, step, finding.place.param, d->error, finding.ratio[0] ? ": it is " : "",
                finding.ratio, finding.ratio[0] ? " of what is due" : "");
    check_find(output, &finding);
}

static void find_gradients(const struct evidence *e, struct check_output *output, const struct unit_values *values,
                           int step)
{
    const struct comparison *c = e->comparison;
    int count = 0, worst = -1;
    for (int p = 0; p < c->params; p++) {
        const struct difference *d = comparison_gradient(c, step, p);
        if (!judge(c, output, d) || find_chosen(e, output, step, p, d)) continue;
        if (oracle_gradient_inputs_agree(c, values, step, p)) {
            find_tensor(e, output, &site_layer_weight_gradient, step, p, d,
                        "in step %d the gradient of %s, to which rank %d contributes, differs from standalone by %.3g "
                        "though activations, their gradients and every weight agree");
            continue;
        }
        count++;
        if (worst < 0 || !(d->error <= comparison_gradient(c, step, worst)->error)) worst = p;
    }
    find_consequence(e, output, step, count, worst, worst < 0 ? NULL : comparison_gradient(c, step, worst),
                     "gradients");
}

/* Initial values depend on nothing but themselves; which rows of them an optimizer holds, shard-cover tells. */
static bool find_initial(const struct evidence *e, struct check_output *output, int param, const struct difference *d)
{
    int unit = e->parallel->params.params[param].unit;
    for (int r = 0; r < d->ranks_count; r++) {
        if (facts_was_chosen(&e->parallel->rank[d->ranks[r]], &site_fsdp_shard, 0, unit)) return false;
    }
    find_tensor(e, output, &site_init_values, -1, param, d,
                "before the first step (%d) the value of %s, rows of rank %d, differs from standalone by %.3g");
    return true;
}

static void find_params(const struct evidence *e, struct check_output *output, int step)
{
    const struct comparison *c = e->comparison;
    int count = 0, worst = -1;
    for (int p = 0; p < c->params; p++) {
        const struct difference *d = comparison_param(c, step, p), *before = comparison_param(c, step - 1, p);
        const struct difference *gradient = comparison_gradient(c, step, p);
        if (!judge(c, output, d) || (step < 0 && find_initial(e, output, p, d))) continue;
        bool inputs_agree =
            step >= 0 && gradient && !gradient->wrong && before && !before->wrong && !c->norm[step].wrong;
        if (inputs_agree) {
            find_tensor(e, output, &site_optimizer_update, step, p, d,
                        "after step %d the value of %s, rows of rank %d, differs from standalone by %.3g though its "
                        "gradient and its value before agree");
            continue;
        }
        count++;
        if (worst < 0 || !(d->error <= comparison_param(c, step, worst)->error)) worst = p;
    }
    find_consequence(e, output, step, count, worst, worst < 0 ? NULL : comparison_param(c, step, worst), "parameters");
}

static bool gradients_agree(const struct comparison *c, int step)
{
    for (int p = 0; p < c->params; p++) {
        const struct difference *d = comparison_gradient(c, step, p);
        if (d && d->wrong) return false;
    }
    return true;
}

static void find_scalar(const struct evidence *e, struct check_output *output, const struct site *site, int step,
                        const struct difference *d, const char *what, double parallel, double standalone)
{
    struct finding finding = finding_new(site, place_at(-1, step, -1));
    set_ratio(e, &finding, d, step);
    finding.expected = standalone;
    finding.got = parallel;
    finding_say(&finding, "the %s of step %d is %.9g, standalone %.9g%s%s%s", what, step, parallel, standalone,
                finding.ratio[0] ? ": it is " : "", finding.ratio, finding.ratio[0] ? " of it" : "");
    check_find(output, &finding);
}

/* Tokens that go to other experts than in the standalone run though no rounding explains it: on both rungs, where there are two. */
static void find_choices(const struct evidence *e, struct check_output *output)
{
    struct routing_difference here = routing_difference_of(e->parallel, e->standalone);
    if (here.differ == 0) return;
    if (e->parallel_other && facts_finished(e->parallel_other) && facts_finished(e->standalone_other) &&
        routing_difference_of(e->parallel_other, e->standalone_other).differ == 0) return;
    struct finding finding = finding_new(NULL, place_at_unit(e->config, -1, here.step, -1, here.unit));
    finding.expected = 0;
    finding.got = (double)here.differ;
    finding_say(&finding, "%lld of %lld choices of experts are others than in the standalone run, from layer %d in step %d on, and their scores are not so close "
                "that rounding explains it", (long long)here.differ, (long long)here.tokens, here.unit - 1, here.step);
    check_find(output, &finding);
}

static void run(const struct evidence *e, struct check_output *output)
{
    if (e->config->workload == WORKLOAD_DENOISE) {
        denoise_oracle(e, output);
        return;
    }
    if (check_is_attention(e)) {
        context_oracle(e, output);
        return;
    }
    const struct comparison *c = e->comparison;
    if (!c) {
        check_skip(output, "the parallel run did not finish: nothing to compare");
        return;
    }
    struct unit_values values = unit_values_new(evidence_fine(e));
    initial_values_check(e, output);
    find_params(e, output, -1);
    for (int step = 0; step < c->steps; step++) {
        const struct comparison_step *s = &c->step[step];
        find_forward(e, output, step);
        if (judge(c, output, &c->loss[step])) {
            find_scalar(e, output, NULL, step, &c->loss[step], "loss", s->loss_parallel, s->loss_standalone);
        }
        find_backward(e, output, step);
        find_gradients(e, output, &values, step);
        if (c->norm[step].known && judge(c, output, &c->norm[step])) {
            find_scalar(e, output, gradients_agree(c, step) ? &site_clip_norm_reduce : NULL, step, &c->norm[step],
                        "gradient norm", s->norm_parallel, s->norm_standalone);
        }
        find_params(e, output, step);
    }
    find_choices(e, output);
    unit_values_free(&values);
}

const struct check check_oracle = {
    .id = "oracle",
    .proves = "the parallel run computes what one rank computes: losses, every gradient after reduction, the gradient "
              "norm, every parameter after the update, activations and their gradients between layers",
    .tier = "default",
    .run = run,
    .workloads = CHECK_IN(WORKLOAD_TRAIN) | CHECK_IN(WORKLOAD_ATTENTION) | CHECK_IN(WORKLOAD_DENOISE),
};
