/* diagnosis: the place from the comparison alone, where no check that ran says one. Loss before gradients before
 * parameters, since each follows from the one before:
 *
 *   the loss differs, activations too             layer.forward
 *   the loss differs, all activations agree       pp.loss.scale: it is made of them, by sums and factors
 *   the loss agrees, all gradients by one ratio   fsdp.grad_divisor: some factor behind the loss, of them the one that is most often it;
 *                                                 pp.grad_scale, where the ratio is the convention's own factor there, or
 *                                                 its inverse, and no 1/D or D: it was applied twice, or left out
 *   the loss agrees, gradients differ otherwise   layer.weight_gradient
 *   only parameters differ                        optimizer.update
 * These are the first of several places that would look the same; the words say so, and which checks tell them apart. */
#include <math.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/compare.h"
#include "scenarios/context_checks.h"
#include "scenarios/diagnosis.h"

static bool activations_agree(const struct comparison *c, int step)
{
    for (int unit = 0; unit < c->units; unit++) {
        for (int sequence = 0; sequence < c->sequences; sequence++) {
            const struct difference *d = comparison_forward(c, step, unit, sequence);
            if (d && d->wrong) return false;
        }
    }
    return true;
}

/* All gradients of the step differ, and by one factor; at least one is known. */
static bool one_ratio(const struct comparison *c, int step, double *ret_ratio)
{
    const struct difference *first = NULL;
    for (int p = 0; p < c->params; p++) {
        const struct difference *d = comparison_gradient(c, step, p);
        if (!d || !d->known) continue;
        if (!d->wrong || !(d->residual <= 1e-3)) return false;
        if (first && !(fabs(d->ratio - first->ratio) <= 1e-3 * fabs(first->ratio))) return false;
        if (!first) first = d;
    }
    if (first) *ret_ratio = first->ratio;
    return first != NULL;
}

static bool is_about(double ratio, double due)
{
    return fabs(ratio - due) <= 1e-3 * fabs(due);
}

static const struct site *factor_behind(const struct comparison *c, int step, double ratio)
{
    double scale = facts_grad_scale_due(c->parallel, step), D = layout_data_ranks(&c->parallel->config.layout);
    bool of_scale = scale != 1 && (is_about(ratio, scale) || is_about(ratio, 1 / scale));
    return of_scale && !is_about(ratio, D) && !is_about(ratio, 1 / D) ? &site_pp_grad_scale : &site_fsdp_grad_divisor;
}

static const struct site *place_of(const struct comparison *c, int step)
{
    double ratio = 1;
    bool one = one_ratio(c, step, &ratio);
    if (c->loss[step].wrong) return activations_agree(c, step) ? &site_pp_loss_scale : &site_layer_forward;
    if (!c->norm[step].wrong && !one) return &site_optimizer_update;
    return one ? factor_behind(c, step, ratio) : &site_layer_weight_gradient;
}

struct finding diagnosis_guess(const struct evidence *evidence, const struct result *result)
{
    const struct comparison *c = evidence->comparison;
    for (int i = 0; i < result->findings_count; i++) {
        const struct finding *f = &result->findings[i];
        if (strcmp(f->check, "oracle") && strcmp(f->check, "grad-norm") && strcmp(f->check, "poison")) continue;
        struct finding finding = *f;
        if (evidence->config->workload == WORKLOAD_ATTENTION) { /* nothing tells: the first place of all that computes, or of the backward */
            bool forward = !evidence->context->comparison || context_comparison_any(evidence->context->comparison, CONTEXT_OUT) || context_comparison_any(evidence->context->comparison, CONTEXT_LSE);
            finding.site = forward ? &site_cp_layout : &site_cp_backward_stats;
            return finding;
        }
        if (evidence->config->workload == WORKLOAD_DENOISE) {
            const struct site *chosen = context_chosen_site(evidence->parallel, false);
            finding.site = chosen ? chosen : &site_layer_forward;
            return finding;
        }
        finding.site = c && f->place.step >= 0 ? place_of(c, f->place.step) : &site_layer_forward;
        bool computes = finding.site == &site_layer_forward || finding.site == &site_layer_weight_gradient;
        const struct site *chosen = computes && layout_cp(&evidence->config->layout) > 1 ? context_chosen_site(evidence->parallel, finding.site != &site_layer_forward) : NULL;
        if (chosen) finding.site = chosen;
        return finding;
    }
    return finding_new(NULL, PLACE_NONE);
}
