/* schedule: what every schedule must hold, for pp 1..9 x 1..12 micro-batches.
 *
 * Each stage runs each forward and each backward once, F before B; every send has its receive in the same order; with
 * blocking sends (a send ends only when its receive is reached) no stage ever waits for ever; 1F1B keeps at most
 * min(pp - stage, m) micro-batches in flight, GPipe m. And the check itself can fail: two stages of 1F1B that both
 * send first do stop. */
#include <check.h>
#include <string.h>

#include "model/schedule.h"
#include "tests/support/run_suite.h"

enum { PP_MAX = 9, M_MAX = 12 };

static void lower_all(const struct schedule *schedule, int pp, int m, bool sync, struct action_list lists[PP_MAX])
{
    for (int s = 0; s < pp; s++) {
        lists[s] = (struct action_list){0};
        schedule_lower(schedule, pp, m, s, sync, NULL, s, &lists[s]);
    }
}

static void free_all(int pp, struct action_list lists[PP_MAX])
{
    for (int s = 0; s < pp; s++) action_list_free(&lists[s]);
}

static bool is_send(enum action_kind kind)
{
    return kind == ACTION_SEND_F || kind == ACTION_SEND_B;
}

static bool meets(struct action send, const struct action_list *peer, int at, int peer_stage)
{
    if (at >= peer->count) return false;
    struct action a = peer->actions[at];
    int due = send.kind == ACTION_SEND_F ? send.stage + 1 : send.stage - 1;
    enum action_kind kind = send.kind == ACTION_SEND_F ? ACTION_RECV_F : ACTION_RECV_B;
    return peer_stage == due && a.kind == kind && a.microbatch == send.microbatch;
}

/* Runs all stages with blocking sends; true if all come to their end. */
static bool completes(int pp, const struct action_list lists[PP_MAX])
{
    int at[PP_MAX] = {0};
    for (bool moved = true; moved;) {
        moved = false;
        for (int s = 0; s < pp; s++) {
            if (at[s] >= lists[s].count) continue;
            struct action a = lists[s].actions[at[s]];
            if (a.kind == ACTION_FORWARD || a.kind == ACTION_BACKWARD) {
                at[s]++;
                moved = true;
            } else if (is_send(a.kind)) {
                int peer = a.kind == ACTION_SEND_F ? s + 1 : s - 1;
                if (!meets(a, &lists[peer], at[peer], peer)) continue;
                at[s]++;
                at[peer]++;
                moved = true;
            }
        }
    }
    for (int s = 0; s < pp; s++) {
        if (at[s] < lists[s].count) return false;
    }
    return true;
}

static void hold_order(const struct schedule *schedule, int pp, int m, int stage, const struct action_list *list)
{
    int forwards[M_MAX] = {0}, backwards[M_MAX] = {0}, in_flight = 0, peak = 0;
    for (int i = 0; i < list->count; i++) {
        struct action a = list->actions[i];
        ck_assert_int_eq(a.stage, stage);
        if (a.kind == ACTION_FORWARD) {
            forwards[a.microbatch]++;
            in_flight++;
        } else if (a.kind == ACTION_BACKWARD) {
            ck_assert_int_eq(forwards[a.microbatch], 1);
            backwards[a.microbatch]++;
            in_flight--;
        }
        if (in_flight > peak) peak = in_flight;
    }
    for (int k = 0; k < m; k++) ck_assert(forwards[k] == 1 && backwards[k] == 1);
    int due = strcmp(schedule->name, "1F1B") ? m : pp - stage < m ? pp - stage : m;
    ck_assert_int_eq(peak, due);
}

START_TEST(every_schedule_holds)
{
    for (int i = 0; i < schedule_count(); i++) {
        for (int pp = 1; pp <= PP_MAX; pp++) {
            for (int m = 1; m <= M_MAX; m++) {
                struct action_list lists[PP_MAX];
                lower_all(schedule_at(i), pp, m, true, lists);
                for (int s = 0; s < pp; s++) hold_order(schedule_at(i), pp, m, s, &lists[s]);
                ck_assert_msg(completes(pp, lists), "%s, pp %d, %d micro-batches: deadlock with blocking sends", schedule_at(i)->name, pp, m);
                free_all(pp, lists);
            }
        }
    }
}
END_TEST

START_TEST(both_sending_first_stops)
{
    struct action_list lists[PP_MAX];
    lower_all(schedule_find("1F1B"), 2, 5, false, lists); /* asynchronous order: everyone sends first */
    ck_assert(!completes(2, lists));
    free_all(2, lists);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("schedule");
    TCase *tcase = tcase_create("schedule");
    tcase_add_test(tcase, every_schedule_holds);
    tcase_add_test(tcase, both_sending_first_stops);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
