/* schedule: the registry, and the lowering from computing to computing with communication. */
#include "model/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "model/sites.h"
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

static void add_exchange(struct exchange e, bool sync, struct site_plan *plan, int rank, struct action_list *list)
{
    bool same_neighbour = e.has_send && e.has_receive &&
                          (e.send.kind == ACTION_SEND_F) == (e.receive.kind == ACTION_RECV_B);
    bool receive_first = same_neighbour && sync && e.send.stage % 2 == 1;
    if (same_neighbour) {
        const struct action *activation = e.send.kind == ACTION_SEND_F ? &e.send : &e.receive;
        struct where where = WHERE_NONE;
        where.rank = rank;
        where.stage = e.send.stage;
        where.microbatch = activation->microbatch;
        const struct armed *armed = site_peek(plan, &site_pp_send_activation, where);
        if (armed && !strcmp(armed->deviation->name, "swap-order")) {
            site_pass(plan, &site_pp_send_activation, where);
            receive_first = !receive_first;
        }
    }
    for (int turn = 0; turn < 2; turn++) {
        bool receive = (turn == 0) == receive_first;
        if (receive && e.has_receive) {
            action_list_add(list, e.receive.kind, e.receive.stage, e.receive.microbatch);
        }
        if (!receive && e.has_send) action_list_add(list, e.send.kind, e.send.stage, e.send.microbatch);
    }
}

void schedule_lower(const struct schedule *schedule, int pp, int microbatches, int stage, bool sync,
                    struct site_plan *plan, int rank, struct action_list *ret_list)
{
    struct action_list compute = {0};
    schedule->compute(pp, microbatches, stage, &compute);
    for (int i = 0; i <= compute.count; i++) {
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
        add_exchange(e, sync, plan, rank, ret_list);
        if (i < compute.count) {
            action_list_add(ret_list, compute.actions[i].kind, stage, compute.actions[i].microbatch);
        }
    }
    action_list_free(&compute);
}
