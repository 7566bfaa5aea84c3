/* plugin_internal: what the files of this folder share. */
#ifndef MODEL_PLUGIN_PLUGIN_INTERNAL_H
#define MODEL_PLUGIN_PLUGIN_INTERNAL_H

#include "model/context/context.h"
#include "model/plugin/hpsim.h"
#include "model/plugin/plugin.h"

enum { PLUGIN_NAME_MAX = 31 };

struct plugin_schedule {
    struct schedule schedule;                /* first: the table's entry is this */
    const struct hpsim_schedule *from;
    int pp, microbatches;                    /* that orders were asked for; 0: none yet */
    struct action_list *orders;              /* [pp] */
};
struct plugin_algorithm {
    struct algorithm algorithm;
    const struct hpsim_algorithm *from;
    const struct plugin *plugin;
};

struct plugin {
    struct context_method method;            /* first: a call's method is this */
    char name[64], path[1024];
    void *handle;
    struct hpsim_description description;    /* with zeros where the plug-in's own is shorter */
    struct plugin_watch *watch, *own_watch;
    struct plugin_schedule *schedules;
    struct plugin_algorithm *algorithms;
    struct loss_convention *losses;
};

static inline struct watch_slot *plugin_slot(const struct plugin *plugin, const struct rank *rank)
{
    return &plugin->watch->slots[rank ? rank_id(rank) + 1 : 0];
}

/* attention.c */
void plugin_method_make(struct plugin *plugin);
/* schedule.c */
bool plugin_schedules_make(struct plugin *plugin, struct error *error);
void plugin_schedules_done(struct plugin *plugin);
/* algorithm.c */
bool plugin_algorithms_make(struct plugin *plugin, struct error *error);
/* loss.c */
bool plugin_losses_make(struct plugin *plugin, struct error *error);

/* A name of something that a plug-in brings; `kind` for messages, "schedule". False and an error: not to be used as one. */
bool plugin_name_fits(const struct plugin *plugin, const char *kind, const char *name, struct error *error);

#endif
