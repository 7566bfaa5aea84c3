/* loss_scale: multiplying the loss so that gradients do not vanish in a narrow format, as torch.amp.GradScaler.
 *
 *   backward      of S * seed * scale
 *   unscale       g = g / scale, after the last reduction
 *   found         max over all ranks that hold a part of the model of "something in g is not finite"
 *   found:        the update is left out, scale *= backoff
 *   else:         after `interval` updates in a row scale *= growth
 * Scales are powers of two unless the scenario says otherwise, so that scaling changes no bit but by overflow
 * and underflow. */
#include <math.h>

#include "model/precision.h"
#include "model/program.h"

void loss_scale_begin(struct program *p)
{
    const struct loss_scale_config *config = &p->run->config->train.loss_scale;
    p->loss_scale = config->kind == LOSS_SCALING_NONE ? 1 : config->initial;
}

/* Whether anything trained here is not finite, and the largest magnitude that is. */
static bool look_at(const struct program *p, const struct unit *unit, double *largest)
{
    bool found = false;
    enum format storage = p->run->ops->storage;
    for (size_t i = 0; i < unit->shard_trained_count; i++) {
        double value = fabs(format_get(unit->reduced, i, storage));
        if (!isfinite(value)) found = true;
        else if (value > *largest) *largest = value;
    }
    return found;
}

bool loss_scale_unscale(struct program *p)
{
    const struct loss_scale_config *config = &p->run->config->train.loss_scale;
    if (config->kind == LOSS_SCALING_NONE) return false;
    struct where where = program_where(p, -1, -1);
    struct scale_fact fact = {.step = p->step, .scale = p->loss_scale};
    double divisor = factor_site(p->run->plan, &site_amp_unscale, where, p->loss_scale, &p->numbers);
    fact.unscaled_by = divisor;
    for (int u = 0; u < p->units_count; u++) {
        struct unit *unit = &p->units[u];
        unit_scale_reduced(unit, &p->context, 1 / divisor);
        fact.found_here = look_at(p, unit, &fact.largest) || fact.found_here;
    }
    double found = fact.found_here;
    struct comm how = {.site = &site_amp_found_inf_reduce, .where = where};
    all_reduce(p->communicator, p->norm_group, &how, (struct buffer){&found, 1, FORMAT_FP64, FORMAT_FP64, NULL}, REDUCE_MAX);
    fact.found = found != 0;
    const bool *left_out = p->run->options->left_out;
    if (left_out) fact.found = left_out[p->step];
    fact.skipped = config->kind == LOSS_SCALING_DYNAMIC &&
                   decision_site(p->run->plan, &site_amp_skip_step, where, fact.found, fact.found);
    loss_scale_update(p, fact.found);
    fact.next = p->loss_scale;
    record_push(p->record, scales, fact);
    return fact.skipped;
}

void loss_scale_update(struct program *p, bool found)
{
    const struct loss_scale_config *config = &p->run->config->train.loss_scale;
    if (config->kind != LOSS_SCALING_DYNAMIC) return;
    if (found) {
        p->loss_scale *= config->backoff;
        p->scale_good_steps = 0;
    } else if (++p->scale_good_steps == config->interval) {
        p->loss_scale *= config->growth;
        p->scale_good_steps = 0;
    }
}
