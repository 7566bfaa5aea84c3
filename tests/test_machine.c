/* test_machine: rounds and their order, the clock, stopping, independence of threads and interleave,
 * many ranks, and the trace. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "sim/hash.h"
#include "sim/trace.h"
#include "tests/machine_helper.h"
#include "tests/support/run_suite.h"

/* ---- rounds ---- */

static int order[64], order_count;

static void order_main(struct rank *rank, void *argument)
{
    for (int i = 0; i < *(int *)argument; i++) {
        order[order_count++] = rank_id(rank);
        rank_yield(rank);
    }
}

/* Proves: a yield lets every other rank run once; interleave 0 is ascending, another one is a different
 * permutation each round, the same at each run. */
START_TEST(test_rounds_order)
{
    int turns = 3, first[64];
    for (int run = 0; run < 3; run++) {
        struct machine *machine = new_machine(11, 1, run == 0 ? 0 : 5);
        order_count = 0;
        ck_assert_int_eq(machine_run(machine, order_main, &turns, &error), MACHINE_FINISHED);
        ck_assert_int_eq(order_count, 33);
        ck_assert_uint_eq(machine_rounds(machine), 4);
        int descents = 0;
        for (int turn = 0; turn < turns; turn++) {
            unsigned seen = 0;
            for (int i = 0; i < 11; i++) {
                seen |= 1u << order[turn * 11 + i];
                descents += i > 0 && order[turn * 11 + i] < order[turn * 11 + i - 1];
            }
            ck_assert_uint_eq(seen, (1u << 11) - 1);
        }
        ck_assert(run == 0 ? descents == 0 : descents > 3);
        if (run == 1) {
            memcpy(first, order, sizeof first);
            ck_assert(memcmp(order, order + 11, 11 * sizeof *order) != 0);
        }
        ck_assert(run != 2 || memcmp(first, order, 33 * sizeof *order) == 0);
        machine_free(machine);
    }
}
END_TEST

static void clock_main(struct rank *rank, void *argument)
{
    (void)argument;
    if (rank_id(rank) == 0) {
        rank_advance(rank, 2.0);
        send_int(rank, 1, 9, 41, SEND_ASYNC);
        rank_advance(rank, 0.25);
        send_int(rank, 1, 9, 42, SEND_SYNC);
    } else {
        struct transfer *first = post_receive(rank, 0, 9);
        ck_assert_int_eq(take_int(rank, first), 41);
        ck_assert_double_eq(rank_time_s(rank), 2.0 + 4 * 0.125);
        rank_advance(rank, 7.0);
        ck_assert_int_eq(receive_int(rank, 0, 9), 42);
        ck_assert_double_eq(rank_time_s(rank), 9.5);
    }
}

static double cost_bytes(void *context, int source, int destination, size_t bytes)
{
    ck_assert(source == 0 && destination == 1);
    return *(double *)context * (double)bytes;
}

/* Proves: arrival is the sender's time plus the cost; waiting never moves a clock back; only advance
 * counts as busy; a synchronous sender waits for the post of the receive. */
START_TEST(test_rounds_clock)
{
    double per_byte = 0.125;
    struct machine_options options = {.ranks = 2, .threads = 1, .message_cost_s = cost_bytes,
                                      .cost_context = &per_byte};
    struct machine *machine = machine_new(&options, &error);
    ck_assert_int_eq(machine_run(machine, clock_main, NULL, &error), MACHINE_FINISHED);
    ck_assert_double_eq(rank_busy_s(machine_rank(machine, 0)), 2.25);
    ck_assert_double_eq(rank_time_s(machine_rank(machine, 0)), 9.5);
    ck_assert_double_eq(rank_busy_s(machine_rank(machine, 1)), 7.0);
    ck_assert_uint_eq(transport_sent(machine_rank(machine, 0)).messages, 2);
    ck_assert_uint_eq(transport_sent(machine_rank(machine, 0)).bytes, 8);
    machine_free(machine);
}
END_TEST

struct stopping { volatile int stop; int turns; };

static void stop_main(struct rank *rank, void *argument)
{
    struct stopping *stopping = argument;
    if (rank_id(rank) == 2)
        transport_wait(rank, post_receive(rank, 0, 1)); /* parked when it stops */
    for (;;) {
        if (rank_id(rank) == 0 && ++stopping->turns == 6)
            stopping->stop = 1;
        rank_yield(rank);
    }
}

/* Proves: the stop flag ends a run at the next round, with ranks dropped where they are. */
START_TEST(test_rounds_stop)
{
    for (int threads = 1; threads <= 3; threads++) {
        struct stopping stopping = {0};
        struct machine_options options = {.ranks = 5, .threads = threads, .stop = &stopping.stop};
        struct machine *machine = machine_new(&options, &error);
        ck_assert_int_eq(machine_run(machine, stop_main, &stopping, &error), MACHINE_STOPPED);
        ck_assert(!error_is_set(&error));
        ck_assert_int_eq(stopping.turns, 6);
        ck_assert_uint_eq(machine_rounds(machine), 6);
        ck_assert_ptr_null(machine_deadlock(machine));
        machine_free(machine);
    }
}
END_TEST

/* ---- independence of threads and interleave ---- */

enum { STEPS = 6, SENDS = 3, DIGESTS = 16 };
struct random_run { int ranks; uint64_t digest[DIGESTS]; };

/* Message k of rank `source` in a step, a function of these numbers alone. */
struct plan { int destination; uint32_t tag; size_t bytes; enum send_mode mode; };
static struct plan plan_of(int ranks, int step, int source, int k)
{
    uint64_t draw = hash_mix((uint64_t)((step * 100 + source) * 10 + k) + 77);
    return (struct plan){(int)(draw % (uint64_t)ranks), (uint32_t)(draw >> 20) % 2, (size_t)(draw >> 30) % 700 + 8,
                         (draw >> 50) % 2 ? SEND_SYNC : SEND_ASYNC};
}

static void random_step(struct rank *rank, struct random_run *run, int step, struct hash *hash)
{
    struct transfer *transfers[SENDS + SENDS * DIGESTS];
    int count = 0, me = rank_id(rank);
    uint64_t digest[2];
    hash_finish(hash, digest);
    for (int k = 0; k < SENDS; k++) {
        unsigned char data[1000];
        struct plan plan = plan_of(run->ranks, step, me, k);
        for (size_t i = 0; i < plan.bytes; i++) /* what is sent depends on all that came before */
            data[i] = (unsigned char)(digest[i % 2] >> (i % 7 * 8)) ^ (unsigned char)(i * 3 + (size_t)k);
        transfers[count++] = post_bytes(rank, plan.destination, plan.tag, data, plan.bytes, plan.mode);
    }
    if ((step + me) % 3 == 0)
        rank_yield(rank);
    for (int source = run->ranks - 1; source >= 0; source--) {
        for (int k = 0; k < SENDS; k++) {
            struct plan plan = plan_of(run->ranks, step, source, k);
            if (plan.destination == me)
                transfers[count++] = post_receive(rank, source, plan.tag);
        }
    }
    rank_advance(rank, (double)(digest[0] % 100));
    int stride = count % 7 ? 7 : 1; /* coprime: every transfer once, out of order */
    for (int i = 0; i < count; i++) {
        struct message *message = transport_wait(rank, transfers[(i * stride + step) % count]);
        hash_f64(hash, rank_time_s(rank));
        if (!message)
            continue;
        hash_u64(hash, (uint64_t)message->source);
        hash_f64(hash, message->arrival_s);
        hash_bytes(hash, message->data, message->bytes);
        message_release(rank, message);
    }
}

static void random_main(struct rank *rank, void *argument)
{
    struct random_run *run = argument;
    struct hash hash;
    uint64_t digest[2];
    hash_init(&hash);
    hash_u64(&hash, (uint64_t)rank_id(rank));
    for (int step = 0; step < STEPS; step++)
        random_step(rank, run, step, &hash);
    hash_finish(&hash, digest);
    run->digest[rank_id(rank)] = digest[0] ^ hash_mix(digest[1]);
}

static double cost_random(void *context, int source, int destination, size_t bytes)
{
    (void)context;
    return 0.125 * source + 0.25 * destination + (double)bytes;
}

/* Proves: what ranks receive, and when, is the same for every number of threads and every interleave,
 * and so is the number of rounds. */
START_TEST(test_rounds_determinism)
{
    static const int rank_counts[] = {1, 3, 7, 13};
    for (int n = 0; n < 4; n++) {
        struct random_run expected = {0};
        uint64_t rounds = 0;
        for (int threads = 1; threads <= 5; threads++) {
            for (uint64_t interleave = 0; interleave <= 20; interleave++) {
                struct random_run run = {.ranks = rank_counts[n]};
                struct machine_options options = {.ranks = run.ranks, .threads = threads, .interleave = interleave,
                                                  .message_cost_s = cost_random};
                struct machine *machine = machine_new(&options, &error);
                ck_assert_int_eq(machine_run(machine, random_main, &run, &error), MACHINE_FINISHED);
                ck_assert_int_eq(machine_unreceived(machine, NULL, 0), 0);
                if (threads == 1 && interleave == 0) {
                    expected = run;
                    rounds = machine_rounds(machine);
                }
                ck_assert_mem_eq(run.digest, expected.digest, sizeof run.digest);
                ck_assert_uint_eq(machine_rounds(machine), rounds);
                machine_free(machine);
            }
        }
        ck_assert_uint_ne(expected.digest[0], 0);
    }
}
END_TEST

static void ring_main(struct rank *rank, void *argument)
{
    int ranks = machine_ranks(rank_machine(rank)), me = rank_id(rank), value = me, *sums = argument;
    int *sum = arena_zalloc(rank_arena(rank, ARENA_STEP), sizeof *sum);
    for (int hop = 0; hop < 5; hop++) {
        *sum += value;
        send_int(rank, (me + 1) % ranks, 0, value, SEND_ASYNC);
        value = receive_int(rank, (me + ranks - 1) % ranks, 0);
    }
    sums[me] = *sum;
}

/* Proves: a thousand ranks fit, on several threads; arenas are a rank's own. */
START_TEST(test_rounds_many_ranks)
{
    static int sums[1001];
    struct machine *machine = new_machine(1001, 3, 4);
    ck_assert_int_eq(machine_run(machine, ring_main, sums, &error), MACHINE_FINISHED);
    ck_assert_uint_eq(machine_rounds(machine), 6);
    for (int me = 0; me < 1001; me++) {
        int expected = 0;
        for (int hop = 0; hop < 5; hop++)
            expected += (me + 1001 - hop) % 1001;
        ck_assert_int_eq(sums[me], expected);
    }
    machine_free(machine);
}
END_TEST

/* ---- trace ---- */

static void trace_main(struct rank *rank, void *argument)
{
    (void)argument;
    struct where where = WHERE_NONE;
    for (int i = 0; i < 5 + 100 * rank_id(rank); i++) {
        where.microbatch = i;
        trace_add(rank, i % 2 ? TRACE_SEND : TRACE_MARK, "mark", i % 2 ? 3 : -1, (uint64_t)i * 10, where);
        rank_advance(rank, 0.5);
    }
}

/* Proves: the last eight events are kept, or all, in order, with their time. */
START_TEST(test_trace)
{
    for (int all = 0; all < 2; all++) {
        struct machine_options options = {.ranks = 2, .threads = 1, .trace = all};
        struct machine *machine = machine_new(&options, &error);
        ck_assert_int_eq(machine_run(machine, trace_main, NULL, &error), MACHINE_FINISHED);
        for (int r = 0; r < 2; r++) {
            int total = 5 + 100 * r, kept = all || total < 8 ? total : 8;
            const struct rank *rank = machine_rank(machine, r);
            ck_assert_int_eq(trace_count(rank), kept);
            for (int i = 0; i < kept; i++) {
                const struct trace_event *event = trace_event(rank, i);
                int number = total - kept + i;
                ck_assert_uint_eq(event->sequence, (uint64_t)number);
                ck_assert_int_eq(event->microbatch, number);
                ck_assert_int_eq(event->step, -1);
                ck_assert_int_eq(event->peer, number % 2 ? 3 : -1);
                ck_assert_uint_eq(event->bytes, (uint64_t)number * 10);
                ck_assert_double_eq(event->time_s, number * 0.5);
                ck_assert_str_eq(trace_kind_names[event->kind], number % 2 ? "send" : "mark");
            }
        }
        machine_free(machine);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("machine");
    TCase *cases = tcase_create("machine");
    tcase_set_timeout(cases, 60);
    tcase_add_test(cases, test_rounds_order);
    tcase_add_test(cases, test_rounds_clock);
    tcase_add_test(cases, test_rounds_stop);
    tcase_add_test(cases, test_rounds_determinism);
    tcase_add_test(cases, test_rounds_many_ranks);
    tcase_add_test(cases, test_trace);
    suite_add_tcase(suite, cases);
    return run_suite(suite, CK_NOFORK);
}
