/* plugin: a shared object of the user's own, loaded and checked, and what it brings as members of hpsim's tables.
 *
 * Nothing of it is global: a scenario opens its plug-in, its run_config points to it, and every place that looks up a name for
 * that run looks into the table and then here. Two runs of one process may have two plug-ins, or one twice.
 *
 *   plugin.c            loading, checking the description
 *   attention.c         a context_method that calls the plug-in
 *   call.c, transfers.c, group_calls.c  the functions of struct hpsim_api
 *   algorithm.c         collective algorithms
 *   schedule.c, loss.c
 *   watch.c             what it is doing right now, for who guards the process */
#ifndef MODEL_PLUGIN_PLUGIN_H
#define MODEL_PLUGIN_PLUGIN_H

#include "collectives/operation.h"
#include "model/config.h"
#include "model/loss_convention.h"
#include "model/plugin/watch.h"
#include "model/schedule.h"

enum { PLUGIN_STACK_BYTES = 1 << 20 }; /* of a rank that runs one (hpsim.h says so) */

struct context_method;
struct plugin;

/* Loads and checks. watch: where its doings are noted, the caller's; NULL: its own. NULL and an error: not to be used. The
 * caller owns it; it must outlive every run whose config points to it. */
struct plugin *plugin_open(const char *path, struct plugin_watch *watch, struct error *error);
void plugin_close(struct plugin *plugin); /* accepts NULL */

const char *plugin_name(const struct plugin *plugin);
const char *plugin_path(const struct plugin *plugin);

/* The i-th name that it brings for a scenario key ("parallel.pipeline.schedule"); NULL: no more, or plugin is NULL. */
const char *plugin_choice_at(const struct plugin *plugin, const char *key, int i);

/* Its schedule of this name, NULL: none, or plugin is NULL. Its order is asked once, here: an order that is none is an error. */
const struct schedule *plugin_schedule_find(const struct plugin *plugin, const char *name);
bool plugin_schedule_prepare(struct plugin *plugin, const char *name, int pp, int microbatches, struct error *error);

const struct loss_convention *plugin_loss_at(const struct plugin *plugin, int i); /* NULL: none */

/* Its algorithms become known to a communicator. */
void plugin_register(const struct plugin *plugin, struct communicator *communicator);
const struct algorithm *plugin_algorithm_find(const struct plugin *plugin, enum collective_op op, const char *name);

/* Its attention as a method; NULL: it brings none, or plugin is NULL. */
const struct context_method *plugin_method(const struct plugin *plugin);
/* The method that a run uses: the plug-in's, where parallel.context.method names it, else the table's ("": ring). */
const struct context_method *context_method_of(const struct run_config *config);
/* Has a plug-in left lse alone, as it may? */
struct context_call;
bool plugin_left_lse(const struct context_call *call);
/* Does the run use its attention, and can it? False and an error: not with this configuration, by its own word or for want of a
 * backward. */
bool plugin_attention_fits(const struct plugin *plugin, const struct run_config *config, struct error *error);

#endif
