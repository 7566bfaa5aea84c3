/* diagnosis: evidence. For the named place, and for the loss, gradients, norm and parameters of the same step:
 * how far what goes in agrees, and by how much what comes out differs. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/compare.h"
#include "scenarios/diagnosis.h"
#include "scenarios/oracle_inputs.h"

static void worst_of(double *largest, const struct difference *d)
{
    if (d) *largest = largest_of(*largest, d->error);
}

/* The largest error of a step's parameters before it, forward, backward (per weight), gradients. */
static double params_before(const struct comparison *c, int step)
{
    double largest = 0;
    for (int p = 0; p < c->params; p++) worst_of(&largest, comparison_param(c, step - 1, p));
    return largest;
}

static double activations(const struct comparison *c, int step, bool backward)
{
    double largest = 0;
    for (int unit = 0; unit < c->units; unit++) {
        for (int sequence = 0; sequence < c->sequences; sequence++) {
            worst_of(&largest, backward ? comparison_backward(c, step, unit, sequence)
                                        : comparison_forward(c, step, unit, sequence));
        }
    }
    return largest;
}

static double gradients(const struct comparison *c, int step)
{
    double largest = 0;
    for (int p = 0; p < c->params; p++) worst_of(&largest, comparison_gradient(c, step, p));
    return largest;
}

/* Of one unit's parameters alone; NAN where there is none. */
static double unit_gradients(const struct comparison *c, int step, int unit)
{
    double largest = NAN;
    for (int p = 0; p < c->params; p++) {
        const struct difference *d = comparison_gradient(c, step, p);
        if (d && c->parallel->params.params[p].unit == unit) largest = largest_of(largest, d->error);
    }
    return largest;
}

/* How far what the site gets agrees with the standalone run. */
static double inputs_agree_to(const struct evidence *e, const struct diagnosis_group *group)
{
    const struct comparison *c = e->comparison;
    const struct place *place = &group->first->place;
    if (!strcmp(group->first->check, "batch-cut") || !strcmp(group->first->check, "influence")) return 0; /* found at the first bit */
    if (!c || group->step < 0) return NAN;
    int step = group->step;
    if (group->site == &site_layer_forward || group->site == &site_layer_backward) {
        int sequence =
            place->rank < 0
                ? 0
                : layout_first_sequence(e->config, e->parallel->rank[place->rank].data_rank, place->microbatch < 0 ? 0 : place->microbatch);
        return oracle_inputs_error(c, step, place->unit, sequence, group->site == &site_layer_backward);
    }
    int order = model_site_order(group->site);
    if (order <= model_site_order(&site_pp_send_activation)) return params_before(c, step);
    bool recomputes = order >= model_site_order(&site_recompute_input) && order <= model_site_order(&site_recompute_reselect);
    if (recomputes || order <= model_site_order(&site_loss_report_reduce)) return activations(c, step, false);
    if (order <= model_site_order(&site_tied_grad_reduce))
        return fmax(activations(c, step, false), activations(c, step, true));
    return gradients(c, step);
}

static struct evidence_item *add(struct diagnosis *diagnosis, const char *tensor, double agree, double differs,
                                 const char *ratio)
{
    if (diagnosis->evidence_count == EVIDENCE_MAX) return NULL;
    struct evidence_item *item = &diagnosis->evidence[diagnosis->evidence_count++];
    snprintf(item->tensor, sizeof item->tensor, "%s", tensor);
    snprintf(item->ratio, sizeof item->ratio, "%s", ratio);
    item->inputs_agree_to = agree;
    item->differs_by = differs;
    return item;
}

static void name_of_place(const struct evidence *e, const struct diagnosis_group *group, char *text, size_t size)
{
    const struct place *place = &group->first->place;
    char name[32] = "", batch[32] = "", rank[32] = "";
    if (place->unit >= 0) unit_name(&e->config->model, place->unit, name);
    if (place->microbatch >= 0) snprintf(batch, sizeof batch, ", micro-batch %d", place->microbatch);
    if (place->rank >= 0) snprintf(rank, sizeof rank, ", rank %d", place->rank);
    const char *what = place->param ? place->param : name;
    snprintf(text, size, "%s%s%s%s%s", group->site->name, what[0] ? ", " : "", what, batch, rank);
}

static void add_difference(struct diagnosis *diagnosis, const struct difference *d, const char *tensor, double agree)
{
    if (!d || !d->known || !d->wrong) return;
    bool is_factor =
        d->residual <= 1e-3 && diagnosis->ratio[0] && fabs(d->ratio - diagnosis->ratio_value) <= 1e-3 * fabs(d->ratio);
    add(diagnosis, tensor, agree, d->error, is_factor ? diagnosis->ratio : "");
}

static int worst_param(const struct comparison *c, int step, bool gradient)
{
    int worst = -1;
    for (int p = 0; p < c->params; p++) {
        const struct difference *d = gradient ? comparison_gradient(c, step, p) : comparison_param(c, step, p);
        const struct difference *other = worst < 0  ? NULL
                                         : gradient ? comparison_gradient(c, step, worst)
                                                    : comparison_param(c, step, worst);
        if (d && d->wrong && (!other || !(d->error <= other->error))) worst = p;
    }
    return worst;
}

void diagnosis_collect(const struct evidence *e, const struct diagnosis_group *group, struct diagnosis *diagnosis)
{
    const struct finding *f = group->first;
    char tensor[96];
    diagnosis->evidence_count = 0;
    name_of_place(e, group, tensor, sizeof tensor);
    double differs = fabs(f->got - f->expected) / fmax(fabs(f->expected), 1e-300);
    if (f->expected == 0) differs = fabs(f->got);
    if (isnan(differs) && e->comparison && group->step >= 0)
        differs = unit_gradients(e->comparison, group->step, f->place.unit);
    if (!isnan(f->ratio_value) && diagnosis->ratio[0]) differs = fabs(f->ratio_value - 1);
    add(diagnosis, tensor, inputs_agree_to(e, group), differs, diagnosis->ratio);
    const struct comparison *c = e->comparison;
    int step = group->step;
    if (!c || step < 0) return;
    double forward = activations(c, step, false), backward = activations(c, step, true), gradient = gradients(c, step);
    add_difference(diagnosis, &c->loss[step], "loss", forward);
    int worst = worst_param(c, step, true);
    if (worst >= 0) {
        snprintf(tensor, sizeof tensor, "gradient of %.60s", c->parallel->params.params[worst].info.name);
        add_difference(diagnosis, comparison_gradient(c, step, worst), tensor, fmax(forward, backward));
    }
    add_difference(diagnosis, &c->norm[step], "gradient norm", gradient);
    worst = worst_param(c, step, false);
    if (worst >= 0) {
        snprintf(tensor, sizeof tensor, "%.60s after step %d", c->parallel->params.params[worst].info.name, step);
        add_difference(diagnosis, comparison_param(c, step, worst), tensor, gradient);
    }
}
