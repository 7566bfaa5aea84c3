/* loss: a plug-in's loss normalizations as entries of the table of conventions. Their expressions are read once, so that what is
 * written wrong is said before anything runs. */
#include "model/plugin/plugin_internal.h"

#include <stdio.h>
#include <string.h>

#include "sim/arena.h"

static bool expression_fits(const struct plugin *plugin, const struct hpsim_loss *loss, const char *what, const char *expression, struct error *error)
{
    /* Any numbers that are not alike: an expression is good for all or for none. */
    struct factor_numbers numbers = {.M = 3, .D = 5, .P = 2, .C = 1, .T = 1, .E = 1, .A = 5, .N = 210, .N_all = 240, .N_unshifted = 225,
                                     .n = 14, .n_rank = 42, .n_rank_unshifted = 45, .D_shard = 5, .D_replicate = 1};
    double value = 0;
    struct error why = {0};
    if (!expression)
        return error_input(error, "plug-in '%.300s': loss '%s' has no %s", plugin->path, loss->name, what);
    if (factor_parse(expression, &numbers, &value, &why) && value > 0) return true;
    return error_input(error, "plug-in '%.300s': loss '%s', %s '%.95s': %s", plugin->path, loss->name, what, expression,
                       error_is_set(&why) ? why.message : "it is not above 0");
}

static bool make(const struct plugin *plugin, const struct hpsim_loss *from, struct loss_convention *to, struct error *error)
{
    if (!plugin_name_fits(plugin, "loss", from->name, error)) return false;
    for (int i = 0; loss_convention_at(i); i++) {
        if (!strcmp(loss_convention_at(i)->name, from->name))
            return error_input(error, "plug-in '%.300s': hpsim has a loss normalization '%s' of its own", plugin->path, from->name);
    }
    if (!expression_fits(plugin, from, "denominator", from->denominator, error) || !expression_fits(plugin, from, "scale", from->scale, error) ||
        !expression_fits(plugin, from, "grad_scale", from->grad_scale, error) || !expression_fits(plugin, from, "weight", from->weight, error) ||
        !expression_fits(plugin, from, "logged", from->logged, error))
        return false;
    *to = (struct loss_convention){
        .name = from->name, .system = plugin->name, .what = from->what ? from->what : "", .source = plugin->path,
        .denominator = from->denominator, .scale = from->scale,
        .combine = from->combine == HPSIM_COMBINE_MEAN ? LOSS_COMBINE_MEAN : LOSS_COMBINE_SUM, .grad_scale = from->grad_scale,
        .counts_at_end = strchr(from->grad_scale, 'N') != NULL, .weight = from->weight, .logged = from->logged,
        .logs_counts = strcmp(from->weight, from->logged) != 0 || strchr(from->grad_scale, 'N'), .logged_format = FORMAT_FP64,
    };
    return true;
}

bool plugin_losses_make(struct plugin *plugin, struct error *error)
{
    int count = plugin->description.losses_count;
    plugin->losses = memory_zalloc((size_t)(count + 1) * sizeof *plugin->losses);
    for (int i = 0; i < count; i++) {
        if (!make(plugin, &plugin->description.losses[i], &plugin->losses[i], error)) return false;
    }
    return true;
}

const struct loss_convention *plugin_loss_at(const struct plugin *plugin, int i)
{
    return plugin && i >= 0 && i < plugin->description.losses_count ? &plugin->losses[i] : NULL;
}
