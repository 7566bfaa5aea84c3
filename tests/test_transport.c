/* test_transport: matching, completion, what is left over, and deadlocks. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/machine_helper.h"
#include "tests/support/run_suite.h"

/* ---- transport ---- */

static void fifo_main(struct rank *rank, void *argument)
{
    (void)argument;
    if (rank_id(rank) == 0) {
        char data[1000];
        for (int i = 0; i < 30; i++) {
            memset(data, i, sizeof data);
            transport_wait(rank, post_bytes(rank, 1, (uint32_t)i % 3, data, (size_t)i * 33, SEND_ASYNC));
            memset(data, 0xee, sizeof data); /* the payload was copied at the post */
        }
        return;
    }
    for (int tag = 2; tag >= 0; tag--) {
        struct transfer *transfers[10];
        for (int i = 0; i < 10; i++)
            transfers[i] = post_receive(rank, 0, (uint32_t)tag);
        for (int i = 9; i >= 0; i--) { /* the order of waiting doesn't matter */
            int number = i * 3 + tag;
            struct message *message = transport_wait(rank, transfers[i]);
            ck_assert_uint_eq(message->bytes, (size_t)number * 33);
            for (size_t b = 0; b < message->bytes; b++)
                ck_assert_int_eq(((char *)message->data)[b], number);
            ck_assert_uint_eq((uintptr_t)message->data % 64, 0);
            memset(message->data, 0xdd, message->bytes); /* the receiver may write to it */
            message_release(rank, message);
        }
    }
    ck_assert_int_eq(transport_unwaited(rank), 0);
}

/* Proves: per (source, destination, group, tag) first in first out by posts, tags don't overtake into
 * each other, payloads of different sizes arrive whole. */
START_TEST(test_transport_fifo)
{
    struct machine *machine = new_machine(2, 1, 0);
    ck_assert_int_eq(machine_run(machine, fifo_main, NULL, &error), MACHINE_FINISHED);
    ck_assert_int_eq(machine_unreceived(machine, NULL, 0), 0);
    machine_free(machine);
}
END_TEST

static int sync_log[8], sync_count;

static void sync_main(struct rank *rank, void *argument)
{
    enum send_mode mode = *(enum send_mode *)argument;
    if (rank_id(rank) == 0) {
        struct transfer *transfer = post_bytes(rank, 1, 4, "abc", 3, mode);
        ck_assert_int_eq(transport_unwaited(rank), 1);
        transport_wait(rank, transfer);
        sync_log[sync_count++] = 0;
    } else {
        for (int i = 0; i < 5; i++)
            rank_yield(rank);
        sync_log[sync_count++] = 1;
        struct transfer *transfer = post_receive(rank, 0, 4);
        for (int i = 0; i < 5; i++)
            rank_yield(rank);
        sync_log[sync_count++] = 2;
        message_release(rank, transport_wait(rank, transfer));
    }
}

/* Proves: an asynchronous send is done at once; a synchronous one when the receive was posted, which is
 * before the receiver waits for it. */
START_TEST(test_transport_sync)
{
    enum send_mode modes[] = {SEND_ASYNC, SEND_SYNC};
    int expected[2][3] = {{0, 1, 2}, {1, 0, 2}};
    for (int i = 0; i < 2; i++) {
        struct machine *machine = new_machine(2, 1, 0);
        sync_count = 0;
        ck_assert_int_eq(machine_run(machine, sync_main, &modes[i], &error), MACHINE_FINISHED);
        ck_assert_int_eq(sync_count, 3);
        ck_assert_mem_eq(sync_log, expected[i], sizeof expected[i]);
        machine_free(machine);
    }
}
END_TEST

static void same_round_main(struct rank *rank, void *argument)
{
    int *seen = argument;
    if (rank_id(rank) == 0) {
        send_int(rank, 1, 0, 7, SEND_ASYNC);
    } else if (rank_id(rank) == 1) {
        struct transfer *transfer = post_receive(rank, 0, 0);
        uint64_t before = machine_rounds(rank_machine(rank));
        ck_assert_int_eq(take_int(rank, transfer), 7); /* parks, though rank 0 has run before it */
        seen[0] = (int)(machine_rounds(rank_machine(rank)) - before);
    } else {
        send_int(rank, 2, 0, 8, SEND_ASYNC); /* to itself */
        seen[1] = receive_int(rank, 2, 0);
    }
}

/* Proves: nothing that is posted in a round is seen in it; a rank may send to itself. */
START_TEST(test_transport_same_round)
{
    int seen[2] = {0};
    struct machine *machine = new_machine(3, 1, 0);
    ck_assert_int_eq(machine_run(machine, same_round_main, seen, &error), MACHINE_FINISHED);
    ck_assert_int_eq(seen[0], 1);
    ck_assert_int_eq(seen[1], 8);
    machine_free(machine);
}
END_TEST

static void leftover_main(struct rank *rank, void *argument)
{
    (void)argument;
    if (rank_id(rank) == 1) {
        struct ledger ledger;
        ledger_init(&ledger);
        ledger_add_term(&ledger, (struct origin){2, 1, 5, 0}, 3, 0.5);
        struct call call = call_of("send", "pp.send_activation", 3);
        call.sequence = 17;
        transport_send(rank, 0, 6, &call, (struct parcel){"xyz", 3, &ledger, 12, 0}, SEND_ASYNC);
        transport_send(rank, 0, 7, &call, (struct parcel){"xyzw", 4, NULL, 16, 0}, SEND_ASYNC);
        transport_send(rank, 0, 8, &call, (struct parcel){"xyzwv", 5, &ledger, 20, 0}, SEND_ASYNC);
        ledger_done(&ledger);
    } else if (rank_id(rank) == 0) {
        transport_receive(rank, 2, 6, &(struct call){.group_id = 3});
        struct call call = call_of("recv", "pp.recv_activation", 3);
        struct message *message = transport_wait(rank, transport_receive(rank, 1, 8, &call));
        ck_assert_int_eq(message->ledger.count, 1);
        ck_assert_int_eq(message->ledger.terms[0].times, 3);
        ck_assert_uint_eq(message->call.sequence, 17);
        ck_assert_str_eq(message->call.purpose, "pp.send_activation");
        /* kept: the machine frees what was never released */
    }
}

/* Proves: messages that nobody receives and transfers that nobody waits for are counted, the first is
 * named, and none of it leaks; the ledger and the sender's call travel along. */
START_TEST(test_transport_leftovers)
{
    struct machine *machine = new_machine(3, 1, 0);
    char text[256];
    ck_assert_int_eq(machine_run(machine, leftover_main, NULL, &error), MACHINE_FINISHED);
    ck_assert_int_eq(machine_unreceived(machine, text, sizeof text), 2);
    ck_assert_str_eq(text, "rank 1 to rank 0: send pp.send_activation in group pp, call 17, tag 6, 3 bytes");
    ck_assert_int_eq(transport_unwaited(machine_rank(machine, 0)), 1);
    ck_assert_int_eq(transport_unwaited(machine_rank(machine, 1)), 3);
    ck_assert_uint_eq(transport_sent(machine_rank(machine, 1)).bytes, 48);
    machine_free(machine);
}
END_TEST

/* ---- liveness ---- */

static void describe_rank(const struct rank *rank, char *text, size_t size)
{
    snprintf(text, size, "%s of rank %d", (const char *)rank_program(rank), rank_id(rank));
}

/* edges[r]: whom rank r waits for; -1: it ends. sync: it waits by a synchronous send. */
struct waiting { const int *edges; bool sync; };

static void waiting_main(struct rank *rank, void *argument)
{
    const struct waiting *waiting = argument;
    int peer = waiting->edges[rank_id(rank)];
    char program[16] = "forward"; /* on the stack, which is there when it is described */
    rank_set_program(rank, program, describe_rank);
    rank_yield(rank);
    if (peer >= 0 && waiting->sync)
        transport_wait(rank, post_bytes(rank, peer, 5, "abcdefg", 7, SEND_SYNC));
    else if (peer >= 0)
        transport_wait(rank, post_receive(rank, peer, 5));
    ck_assert_int_lt(peer, 0);
}

static void check_deadlock(const int *edges, int ranks, bool sync, int threads, const int *cycle, int cycle_count)
{
    struct waiting waiting = {edges, sync};
    struct machine *machine = new_machine(ranks, threads, 0);
    ck_assert_int_eq(machine_run(machine, waiting_main, &waiting, &error), MACHINE_DEADLOCK);
    const struct deadlock *deadlock = machine_deadlock(machine);
    ck_assert_uint_eq(machine_rounds(machine), 2); /* at once */
    int count = 0;
    for (int r = 0; r < ranks; r++) {
        char where[64];
        if (edges[r] < 0)
            continue;
        const struct blocked *blocked = &deadlock->blocked[count++];
        snprintf(where, sizeof where, "forward of rank %d", r);
        ck_assert_int_eq(blocked->rank, r);
        ck_assert_int_eq(blocked->peer, edges[r]);
        ck_assert_int_eq(blocked->is_send, sync);
        ck_assert_str_eq(blocked->op, sync ? "send" : "recv");
        ck_assert_str_eq(blocked->purpose, sync ? "test.send" : "test.recv");
        ck_assert_str_eq(blocked->group, "pp");
        ck_assert_uint_eq(blocked->tag, 5);
        ck_assert_str_eq(blocked->where, where);
    }
    ck_assert_int_eq(deadlock->blocked_count, count);
    ck_assert_int_eq(deadlock->cycle_count, cycle_count);
    ck_assert(cycle_count == 0 || memcmp(deadlock->cycle, cycle, (size_t)cycle_count * sizeof *cycle) == 0);
    ck_assert_int_eq(machine_unreceived(machine, NULL, 0), sync ? count : 0);
    machine_free(machine);
}

/* Proves: a deadlock is found at once, every blocked rank is described, and of the wait-for cycles the
 * one with the smallest rank is given, from that rank on; a wait for an ended rank is no cycle. */
START_TEST(test_liveness_cycles)
{
    for (int threads = 1; threads <= 3; threads++) {
        for (int sync = 0; sync < 2; sync++) {
            check_deadlock((int[]){1, 0}, 2, sync, threads, (int[]){0, 1}, 2);
            check_deadlock((int[]){4, -1, 0, 2, 3}, 5, sync, threads, (int[]){0, 4, 3, 2}, 4);
            check_deadlock((int[]){3, 2, 4, 5, 1, 3}, 6, sync, threads, (int[]){1, 2, 4}, 3); /* 3-5 is another */
            check_deadlock((int[]){2, 0, -1}, 3, sync, threads, NULL, 0);
        }
        check_deadlock((int[]){-1, 1, 1}, 3, false, threads, (int[]){1}, 1); /* waits for itself */
    }
}
END_TEST

static void holding_main(struct rank *rank, void *argument)
{
    static char big[50001];
    (void)argument;
    int me = rank_id(rank);
    post_bytes(rank, 1 - me, 0, big, sizeof big, SEND_ASYNC);
    post_receive(rank, 1 - me, 3);
    ck_assert_ptr_nonnull(transport_wait(rank, post_receive(rank, 1 - me, 0))); /* held */
    arena_alloc(rank_arena(rank, ARENA_RUN), 1000);
    transport_wait(rank, post_receive(rank, 1 - me, 1));
}

/* Proves (under a leak checker): all that ranks hold when they are dropped is freed. */
START_TEST(test_liveness_drops_all)
{
    struct machine *machine = new_machine(2, 2, 0);
    ck_assert_int_eq(machine_run(machine, holding_main, NULL, &error), MACHINE_DEADLOCK);
    ck_assert_int_eq(machine_deadlock(machine)->blocked_count, 2);
    ck_assert_str_eq(machine_deadlock(machine)->blocked[0].where, "");
    machine_free(machine);
    machine_free(new_machine(9, 2, 0)); /* never run */
    machine_free(NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transport");
    TCase *cases = tcase_create("transport");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, test_transport_fifo);
    tcase_add_test(cases, test_transport_sync);
    tcase_add_test(cases, test_transport_same_round);
    tcase_add_test(cases, test_transport_leftovers);
    tcase_add_test(cases, test_liveness_cycles);
    tcase_add_test(cases, test_liveness_drops_all);
    suite_add_tcase(suite, cases);
    return run_suite(suite, CK_NOFORK);
}
