/* schedule: a plug-in's pipeline schedules as entries of the table. An order is asked for once a stage, before anything runs,
 * and looked at: what a stage cannot do (a backward without its forward) is said then. Orders of two stages that do not
 * fit each other deadlock, and are found as such. */
#include "model/plugin/plugin_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/arena.h"
#include "sim/assertion.h"

static void compute(const struct schedule *schedule, int pp, int microbatches, int stage, struct action_list *ret_list)
{
    const struct plugin_schedule *s = (const struct plugin_schedule *)schedule;
    ASSERT_MESSAGE(s->pp == pp && s->microbatches == microbatches, "orders of '%s' were asked for %d stages and %d micro-batches, not %d and %d",
                   schedule->name, s->pp, s->microbatches, pp, microbatches);
    for (int i = 0; i < s->orders[stage].count; i++) {
        struct action a = s->orders[stage].actions[i];
        action_list_add(ret_list, a.kind, a.stage, a.microbatch);
    }
}

/* The most that its own order has at once. Of another number of micro-batches nothing is known: all of them. */
static int in_flight(const struct schedule *schedule, int pp, int microbatches, int stage)
{
    const struct plugin_schedule *s = (const struct plugin_schedule *)schedule;
    int now = 0, most = 0;
    if (s->pp != pp || s->microbatches != microbatches) return microbatches;
    for (int i = 0; i < s->orders[stage].count; i++) {
        now += s->orders[stage].actions[i].kind == ACTION_FORWARD ? 1 : -1;
        if (now > most) most = now;
    }
    return most;
}

bool plugin_schedules_make(struct plugin *plugin, struct error *error)
{
    int count = plugin->description.schedules_count;
    plugin->schedules = memory_zalloc((size_t)(count + 1) * sizeof *plugin->schedules);
    for (int i = 0; i < count; i++) {
        const struct hpsim_schedule *from = &plugin->description.schedules[i];
        if (!plugin_name_fits(plugin, "schedule", from->name, error)) return false;
        if (!from->order) return error_input(error, "plug-in '%.300s': schedule '%s' has no function", plugin->path, from->name);
        if (schedule_find(from->name) || strlen(from->name) >= SCHEDULE_NAME_MAX)
            return error_input(error, "plug-in '%.300s': hpsim has a schedule '%s' of its own", plugin->path, from->name);
        plugin->schedules[i] = (struct plugin_schedule){.schedule = {from->name, from->what ? from->what : "", compute, in_flight}, .from = from};
    }
    return true;
}

static void orders_free(struct plugin_schedule *s)
{
    for (int i = 0; i < s->pp; i++) action_list_free(&s->orders[i]);
    free(s->orders);
    s->orders = NULL;
    s->pp = s->microbatches = 0;
}

void plugin_schedules_done(struct plugin *plugin)
{
    for (int i = 0; plugin->schedules && i < plugin->description.schedules_count; i++) orders_free(&plugin->schedules[i]);
    free(plugin->schedules);
}

static struct plugin_schedule *find(const struct plugin *plugin, const char *name)
{
    for (int i = 0; plugin && i < plugin->description.schedules_count; i++) {
        if (!strcmp(plugin->schedules[i].from->name, name)) return &plugin->schedules[i];
    }
    return NULL;
}

const struct schedule *plugin_schedule_find(const struct plugin *plugin, const char *name)
{
    struct plugin_schedule *found = find(plugin, name);
    return found ? &found->schedule : NULL;
}

/* What is wrong with the order of one stage; "" for nothing. */
static void judge(const struct hpsim_action *actions, int count, int microbatches, char why[256])
{
    char *state = memory_zalloc((size_t)microbatches);
    if (count != 2 * microbatches)
        snprintf(why, 256, "%d actions; %d micro-batches need %d, a forward and a backward each", count, microbatches, 2 * microbatches);
    for (int i = 0; i < count && i < 2 * microbatches && !why[0]; i++) {
        int m = actions[i].microbatch, kind = actions[i].kind;
        if (kind != HPSIM_FORWARD && kind != HPSIM_BACKWARD) snprintf(why, 256, "action %d of %d is of kind %d", i, count, kind);
        else if (m < 0 || m >= microbatches) snprintf(why, 256, "action %d of %d is of micro-batch %d; there are 0 to %d", i, count, m, microbatches - 1);
        else if (kind == HPSIM_FORWARD && state[m] != 0) snprintf(why, 256, "action %d of %d is a second forward of micro-batch %d", i, count, m);
        else if (kind == HPSIM_BACKWARD && state[m] == 0) snprintf(why, 256, "action %d of %d is the backward of micro-batch %d before its forward", i, count, m);
        else if (kind == HPSIM_BACKWARD && state[m] == 2) snprintf(why, 256, "action %d of %d is a second backward of micro-batch %d", i, count, m);
        else state[m] = kind == HPSIM_FORWARD ? 1 : 2;
    }
    free(state);
}

static bool ask(struct plugin *plugin, struct plugin_schedule *s, int pp, int microbatches, int stage, struct error *error)
{
    enum { GUARD = 16 }; /* behind the room that it was given */
    char operation[WATCH_OPERATION], why[256] = "";
    size_t room = (size_t)(2 * microbatches + GUARD);
    struct hpsim_action *actions = memory_alloc(room * sizeof *actions);
    memset(actions, 0x7f, room * sizeof *actions);
    snprintf(operation, sizeof operation, "order of schedule '%s' for stage %d of %d", s->from->name, stage, pp);
    watch_enter(plugin->watch, &plugin->watch->slots[0], operation);
    int count = s->from->order(pp, microbatches, stage, actions);
    watch_leave(&plugin->watch->slots[0]);
    for (size_t i = 2 * (size_t)microbatches; i < room && !why[0]; i++) {
        if (actions[i].kind != 0x7f7f7f7f || actions[i].microbatch != 0x7f7f7f7f) snprintf(why, sizeof why, "it wrote behind the %d actions that there is room for", 2 * microbatches);
    }
    if (!why[0]) judge(actions, count, microbatches, why);
    for (int i = 0; i < count && !why[0]; i++)
        action_list_add(&s->orders[stage], actions[i].kind == HPSIM_FORWARD ? ACTION_FORWARD : ACTION_BACKWARD, stage, actions[i].microbatch);
    free(actions);
    return !why[0] || error_input(error, "plug-in '%s': schedule '%s', stage %d of %d: %s", plugin->name, s->from->name, stage, pp, why);
}

bool plugin_schedule_prepare(struct plugin *plugin, const char *name, int pp, int microbatches, struct error *error)
{
    struct plugin_schedule *s = find(plugin, name);
    if (!s) return true;
    orders_free(s);
    s->pp = pp;
    s->microbatches = microbatches;
    s->orders = memory_zalloc((size_t)pp * sizeof *s->orders);
    for (int stage = 0; stage < pp; stage++) {
        if (!ask(plugin, s, pp, microbatches, stage, error)) return false;
    }
    return true;
}
