/* schedule: the registry, and the lowering from computing to computing with communication. */
#include "model/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "model/deviations.h"
#include "model/plugin/plugin.h"
#include "sim/arena.h"

const char *const action_names[] = {"F", "B", "SEND_F", "RECV_F", "SEND_B", "RECV_B"};

#define SCHEDULE(file, name) extern const struct schedule schedule_##file;
#include "model/schedules.def"
#undef SCHEDULE

static const struct schedule *const schedules[] = {
#define SCHEDULE(file, name) &schedule_##file,
#include "model/schedules.def"
#undef SCHEDULE
};

int schedule_count(void)
{
    return (int)(sizeof schedules / sizeof schedules[0]);
}

const struct schedule *schedule_at(int i)
{
    return i >= 0 && i < schedule_count() ? schedules[i] : NULL;
}

const struct schedule *schedule_find(const char *name)
{
    for (int i = 0; i < schedule_count(); i++) {
        if (!strcmp(schedules[i]->name, name)) return schedules[i];
    }
    return NULL;
}

const struct schedule *schedule_of(const struct run_config *config)
{
    const struct schedule *found = schedule_find(config->layout.schedule);
    return found ? found : plugin_schedule_find(config->plugin, config->layout.schedule);
}

void action_list_add(struct action_list *list, enum action_kind kind, int stage, int microbatch)
{
    if (list->count == list->capacity) {
        list->capacity = list->capacity ? 2 * list->capacity : 32;
        list->actions = memory_realloc(list->actions, (size_t)list->capacity * sizeof *list->actions);
    }
    list->actions[list->count++] = (struct action){kind, stage, microbatch};
}

void action_list_free(struct action_list *list)
{
    free(list->actions);
    *list = (struct action_list){0};
}

/* A send that follows one computation and the receive that the next one needs: same neighbour or not? */
struct exchange { bool has_send, has_receive; struct action send, receive; };

static int place_of(const struct action_list *compute, enum action_kind kind, int microbatch)
{
    int i = 0;
    while (i < compute->count && (compute->actions[i].kind != kind || compute->actions[i].microbatch != microbatch)) i++;
    return i;
}

/* With blocking sends, which of the two must come first? The neighbour computes X from what is sent to it and Y,
 * whose result it sends back. X before Y: it cannot answer before it has received, so send first. Y, then other
 * things, then X: it is stuck in its send until it is received, so receive first. Y and X next to each other: both
 * stages stand in the same exchange, and by convention the even one sends first and the odd one receives first. */
static bool receives_first(const struct exchange *e, const struct action_list *neighbour)
{
    bool forward = e->send.kind == ACTION_SEND_F;
    int x = place_of(neighbour, forward ? ACTION_FORWARD : ACTION_BACKWARD, e->send.microbatch);
    int y = place_of(neighbour, forward ? ACTION_BACKWARD : ACTION_FORWARD, e->receive.microbatch);
    if (x < y) return false;
    return x == y + 1 ? e->send.stage % 2 == 1 : true;
}

static void add_exchange(struct exchange e, const struct action_list neighbours[2], bool sync, struct site_plan *plan, int rank,
                         struct action_list *list)
{
    bool forward = e.send.kind == ACTION_SEND_F;
    bool same_neighbour = e.has_send && e.has_receive && forward == (e.receive.kind == ACTION_RECV_B);
    bool receive_first = same_neighbour && sync && receives_first(&e, &neighbours[forward ? 1 : 0]);
    if (same_neighbour) {
        const struct action *activation = forward ? &e.send : &e.receive;
        struct where where = WHERE_NONE;
        where.rank = rank;
        where.stage = e.send.stage;
        where.microbatch = activation->microbatch;
        if (order_site(plan, &site_pp_send_activation, where)) receive_first = !receive_first;
    }
    for (int turn = 0; turn < 2; turn++) {
        bool receive = (turn == 0) == receive_first;
        if (receive && e.has_receive) {
            action_list_add(list, e.receive.kind, e.receive.stage, e.receive.microbatch);
        }
        if (!receive && e.has_send) action_list_add(list, e.send.kind, e.send.stage, e.send.microbatch);
    }
}

/* Does the warm-up, as it is with at least as many micro-batches as stages, take more than there are? */
static bool warms_up_too_long(const struct schedule *schedule, int pp, int microbatches, int stage, struct site_plan *plan, int rank)
{
    struct where where = WHERE_NONE;
    where.rank = rank;
    where.stage = stage;
    if (stage == 0 || microbatches >= pp || schedule->in_flight(schedule, pp, pp, stage) <= microbatches) return false;
    return !decision_site(plan, &site_pp_schedule, where, true, true);
}

void schedule_lower(const struct schedule *schedule, int pp, int microbatches, int stage, bool sync,
                    struct site_plan *plan, int rank, struct action_list *ret_list)
{
    struct action_list compute = {0}, neighbours[2] = {{0}};
    schedule->compute(schedule, pp, microbatches, stage, &compute);
    if (stage > 0) schedule->compute(schedule, pp, microbatches, stage - 1, &neighbours[0]);
    if (stage < pp - 1) schedule->compute(schedule, pp, microbatches, stage + 1, &neighbours[1]);
    bool waits = warms_up_too_long(schedule, pp, microbatches, stage, plan, rank);
    for (int i = 0; i <= compute.count; i++) {
        if (waits && i < compute.count && compute.actions[i].kind == ACTION_BACKWARD) {
            action_list_add(ret_list, ACTION_RECV_F, stage, microbatches);
            waits = false;
        }
        struct exchange e = {0};
        if (i > 0) {
            struct action a = compute.actions[i - 1];
            e.has_send = a.kind == ACTION_FORWARD ? stage < pp - 1 : stage > 0;
            e.send = (struct action){a.kind == ACTION_FORWARD ? ACTION_SEND_F : ACTION_SEND_B, stage, a.microbatch};
        }
        if (i < compute.count) {
            struct action b = compute.actions[i];
            e.has_receive = b.kind == ACTION_FORWARD ? stage > 0 : stage < pp - 1;
            e.receive = (struct action){b.kind == ACTION_FORWARD ? ACTION_RECV_F : ACTION_RECV_B, stage, b.microbatch};
        }
        add_exchange(e, neighbours, sync, plan, rank, ret_list);
        if (i < compute.count) {
            action_list_add(ret_list, compute.actions[i].kind, stage, compute.actions[i].microbatch);
        }
    }
    action_list_free(&compute);
    action_list_free(&neighbours[0]);
    action_list_free(&neighbours[1]);
}
