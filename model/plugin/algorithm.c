/* algorithm: a plug-in's collective algorithms as entries of the table. What it says (send these parts, receive those) is done with
 * the functions that built-in algorithms use, numbers and ledgers by one call; it never sees a number, so that it can be asked
 * beforehand with marks in their place (collectives/pattern.h), and met runs work as with any other. */
#include "model/plugin/call.h"

#include <stdio.h>
#include <string.h>

#include "sim/arena.h"

static int judge(struct hpsim_call *call, const char *what, int peer, int first, int count)
{
    const struct operation *o = call->operation;
    if (peer < 0 || peer >= o->size || peer == o->me)
        return call_misused(call, HPSIM_WRONG_MEMBER, "%s: member %d; there are 0 to %d beside %d itself", what, peer, o->size - 1, o->me);
    if (first >= 0 && count >= 1 && first <= o->size - count) return HPSIM_OK;
    return call_misused(call, HPSIM_WRONG_COUNT, "%s: parts %d to %d; there are 0 to %d", what, first, first + count - 1, o->size - 1);
}

static int send_parts(struct hpsim_call *call, int to, int first, int count)
{
    struct operation *o = call->operation;
    call_begin(call, "send to member %d, parts %d to %d", to, first, first + count - 1);
    int status = judge(call, "send", to, first, count);
    if (status == HPSIM_OK) {
        struct part range = operation_range(o, first, count);
        operation_send(o, to, &range);
    }
    call_end(call);
    return status;
}

static int send_source(struct hpsim_call *call, int to)
{
    struct operation *o = call->operation;
    call_begin(call, "send of the source for member %d", to);
    int status = judge(call, "send_source", to, 0, 1);
    if (status == HPSIM_OK && o->op != OP_ALL_TO_ALL) status = call_misused(call, HPSIM_WRONG_ARGUMENT, "send_source: only an all_to_all has sources");
    if (status == HPSIM_OK) operation_send(o, to, &o->sources[to]);
    call_end(call);
    return status;
}

static int receive_parts(struct hpsim_call *call, const char *what, int from, int first, int count, bool add)
{
    struct operation *o = call->operation;
    call_begin(call, "%s from member %d, parts %d to %d", what, from, first, first + count - 1);
    int status = judge(call, what, from, first, count);
    if (status == HPSIM_OK && add && o->op != OP_ALL_REDUCE && o->op != OP_REDUCE_SCATTER)
        status = call_misused(call, HPSIM_WRONG_ARGUMENT, "receive_add: %s adds nothing", collective_op_names[o->op]);
    if (status == HPSIM_OK) {
        struct part range = operation_range(o, first, count), arrived;
        struct message *message = operation_receive(o, from, &range, &arrived);
        if (add) part_reduce(o, &range, &arrived);
        else part_take(o, &range, &arrived);
        operation_release(o, message);
        operation_range_done(o, first, count, &range);
    }
    call_end(call);
    return status;
}

static int take(struct hpsim_call *call, int from, int first, int count)
{
    return receive_parts(call, "receive", from, first, count, false);
}

static int add(struct hpsim_call *call, int from, int first, int count)
{
    return receive_parts(call, "receive_add", from, first, count, true);
}

/* An attention of the plug-in may be in the middle of a call of hpsim that comes here: its texts are put back. */
static void run(struct operation *o)
{
    const struct plugin_algorithm *a = o->algorithm->context;
    struct watch_slot *slot = plugin_slot(a->plugin, o->rank);
    char operation[WATCH_OPERATION], before[WATCH_OPERATION], last[WATCH_LAST], what[64];
    memcpy(before, slot->operation, sizeof before);
    memcpy(last, slot->last, sizeof last);
    int place = atomic_load(&slot->place);
    snprintf(what, sizeof what, "%.16s '%.31s'", a->from->operation, a->from->name);
    snprintf(operation, sizeof operation, "%s%s", what, o->recording ? ", asked beforehand without numbers" : "");
    struct hpsim_call call = {.plugin = a->plugin, .slot = slot, .rank = o->rank, .communicator = o->c, .group = o->group, .operation = o,
                              .where = o->where, .what = what};
    struct hpsim_collective collective = {.size = sizeof collective, .call = &call, .members = o->size, .member = o->me, .send = send_parts,
                                          .send_source = send_source, .receive = take, .receive_add = add};
    const char *note = o->rank ? rank_note(o->rank, call.note) : NULL;
    watch_enter(a->plugin->watch, slot, operation);
    int status = a->from->run(&collective);
    watch_leave(slot);
    if (status != 0) call_misused(&call, status, "returned %d: it could not be done", status);
    if (o->rank) rank_note(o->rank, note);
    memcpy(slot->operation, before, sizeof before);
    memcpy(slot->last, last, sizeof last);
    atomic_store(&slot->place, place);
}

static const struct { const char *name; enum collective_op op; } operations[] = {
    {"all_reduce", OP_ALL_REDUCE}, {"all_gather", OP_ALL_GATHER}, {"reduce_scatter", OP_REDUCE_SCATTER}, {"all_to_all", OP_ALL_TO_ALL},
};

static bool make(const struct plugin *plugin, const struct hpsim_algorithm *from, struct plugin_algorithm *to, struct error *error)
{
    size_t i = 0;
    if (!plugin_name_fits(plugin, "algorithm", from->name, error)) return false;
    while (i < sizeof operations / sizeof operations[0] && (!from->operation || strcmp(operations[i].name, from->operation) != 0)) i++;
    if (i == sizeof operations / sizeof operations[0])
        return error_input(error, "plug-in '%.300s': algorithm '%s' is of the operation '%.40s'; allowed: all_reduce, all_gather, reduce_scatter, all_to_all",
                           plugin->path, from->name, from->operation ? from->operation : "NULL");
    if (!from->run) return error_input(error, "plug-in '%.300s': algorithm '%s' has no function", plugin->path, from->name);
    if (algorithm_find(operations[i].op, from->name))
        return error_input(error, "plug-in '%.300s': hpsim has an algorithm '%s' of %s of its own", plugin->path, from->name, from->operation);
    *to = (struct plugin_algorithm){.algorithm = {operations[i].op, {operations[i].name, from->name}, run, to}, .from = from, .plugin = plugin};
    return true;
}

bool plugin_algorithms_make(struct plugin *plugin, struct error *error)
{
    int count = plugin->description.algorithms_count;
    plugin->algorithms = memory_zalloc((size_t)(count + 1) * sizeof *plugin->algorithms);
    for (int i = 0; i < count; i++) {
        if (!make(plugin, &plugin->description.algorithms[i], &plugin->algorithms[i], error)) return false;
    }
    return true;
}

void plugin_register(const struct plugin *plugin, struct communicator *communicator)
{
    for (int i = 0; plugin && i < plugin->description.algorithms_count; i++) communicator_add_algorithm(communicator, &plugin->algorithms[i].algorithm);
}

const struct algorithm *plugin_algorithm_find(const struct plugin *plugin, enum collective_op op, const char *name)
{
    for (int i = 0; plugin && name && i < plugin->description.algorithms_count; i++) {
        const struct algorithm *a = &plugin->algorithms[i].algorithm;
        if (a->op == op && !strcmp(a->info.name, name)) return a;
    }
    return NULL;
}
