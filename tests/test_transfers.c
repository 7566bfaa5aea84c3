/* test_transfers: point to point, ring shifts, barriers, and what all of them cost. */
#include "tests/support/ranks.h"
#include "tests/support/run_suite.h"

#include <stdatomic.h>

/* Says which member and which element it is. */
static double code(int member, size_t i)
{
    return (double)((size_t)member * 1000 + i * 3 + 1);
}

/* ---- barrier, transfers, ring shift ---- */

static atomic_int entered;
static void barrier_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_move, 0);
    for (int i = 0; i < rank; i++) /* arrive at different times */
        rank_yield(communicator_rank(c));
    for (int round = 1; round <= 3; round++) {
        atomic_fetch_add(&entered, 1);
        barrier(c, g, &how);
        REQUIRE(atomic_load(&entered) >= round * g->size);
    }
}

/* Nobody leaves a barrier before everybody came. */
START_TEST(barrier_holds)
{
    atomic_store(&entered, 0);
    struct ranks ranks = {.mesh = mesh_line(_i), .body = barrier_body, .threads = 2};
    ranks_run(&ranks);
    ck_assert_int_eq(ranks.outcome, MACHINE_FINISHED);
    ranks_done(&ranks);
}
END_TEST

static void transfer_body(struct communicator *c, int rank, void *context)
{
    enum send_mode mode = *(enum send_mode *)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_move, 0);
    struct buffer a = buffer_new(11, FORMAT_FP32, FORMAT_BF16), b = buffer_new(5, FORMAT_FP32, FORMAT_BF16);
    if (rank == 0) {
        struct transfer *sends[3];
        for (int k = 0; k < 3; k++) { /* two streams; the buffer is reused at once */
            struct buffer *which = k == 1 ? &b : &a;
            for (size_t i = 0; i < which->count; i++)
                put(*which, i, 1.001 + k);
            came_from(*which, k, 0);
            sends[k] = send_start(c, g, &how, *which, 2, k == 1 ? 9 : 4, mode);
            REQUIRE(at(*which, 0) == (double)(float)(1.001 + k)); /* the sender's stays unrounded */
        }
        for (int k = 2; k >= 0; k--)
            send_wait(c, sends[k]);
        send_and_wait(c, g, &how, b, 2, 4, mode);
    } else if (rank == 2) {
        struct transfer *first = receive_start(c, g, &how, a, 0, 4);
        receive(c, g, &how, b, 0, 9);
        REQUIRE(at(b, 4) == 2.0);
        REQUIRE(times_of(b, 1, 0) == 1);
        receive_wait(c, first, &how, a);
        REQUIRE(at(a, 10) == 1.0);
        REQUIRE(times_of(a, 0, 0) == 1);
        receive(c, g, &how, a, 0, 4);
        REQUIRE(at(a, 10) == 3.0);
        receive(c, g, &how, a, 0, 4); /* five arrive where eleven are due */
        REQUIRE(at(a, 4) == 2.0);
        REQUIRE(isnan(at(a, 5)) && isnan(at(a, 10)));
    }
    buffer_free(a);
    buffer_free(b);
}

/* Transfers arrive per tag in order, rounded to the wire's format, with their ledger; waits in any order;
 * a short message leaves NaN and is found by match_calls. */
START_TEST(transfers)
{
    enum send_mode mode = _i ? SEND_SYNC : SEND_ASYNC;
    struct ranks ranks = {.mesh = mesh_line(3), .body = transfer_body, .context = &mode};
    struct mismatch mismatch[2];
    ranks_run(&ranks);
    ck_assert_int_eq(ranks.outcome, MACHINE_FINISHED);
    ck_assert_int_eq(match_calls(ranks.communicators, 3, true, mismatch, 2), 1);
    ck_assert_int_eq(communicator_traffic_count(ranks.communicators[2]), 0);
    const struct traffic *t = communicator_traffic(ranks.communicators[0], 0);
    ck_assert_uint_eq(t->messages, 4);
    ck_assert_uint_eq(t->bytes, (11 + 5 + 11 + 5) * 2);
    ranks_done(&ranks);
}
END_TEST

static void shift_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_move, 0);
    struct buffer in = buffer_new(7, FORMAT_FP64, FORMAT_FP64), out = buffer_new(7, FORMAT_FP64, FORMAT_FP64);
    for (int shift = -g->size; shift <= g->size; shift++) {
        for (size_t i = 0; i < 7; i++)
            put(in, i, code(rank, i));
        came_from(in, 1, rank);
        ring_shift(c, g, &how, out, in, shift);
        ring_shift(c, g, &how, in, in, shift); /* in place */
        int from = (rank - shift + g->size) % g->size;
        for (size_t i = 0; i < 7; i++) {
            REQUIRE(at(out, i) == code(from, i));
            REQUIRE(at(in, i) == code(from, i));
        }
        REQUIRE(times_of(out, 1, from) == 1);
        REQUIRE(times_of(in, 1, from) == 1);
        REQUIRE(out.ledger->count == 1);
    }
    buffer_free(in);
    buffer_free(out);
}

/* A ring shift by any number of places, forward and back, also in place. */
START_TEST(ring_shifts)
{
    struct ranks ranks = {.mesh = mesh_line(_i), .body = shift_body};
    ranks_run(&ranks);
    ck_assert_int_eq(ranks.outcome, MACHINE_FINISHED);
    ranks_done(&ranks);
}
END_TEST

/* ---- traffic ---- */

enum { REAL = 13, PROBES = 3 };

static void traffic_body(struct communicator *c, int rank, void *context)
{
    (void)rank;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_reduce, 0);
    how.algorithm = context;
    how.uncounted = PROBES;
    struct buffer whole = buffer_new((REAL + PROBES) * (size_t)g->size, FORMAT_FP32, FORMAT_BF16);
    struct buffer part = buffer_new(REAL + PROBES, FORMAT_FP32, FORMAT_BF16);
    memset(whole.data, 0, whole.count * 4);
    memset(part.data, 0, part.count * 4);
    reduce_scatter(c, g, &how, part, whole, NULL, REDUCE_SUM);
    all_reduce(c, g, &how, part, REDUCE_SUM);
    all_reduce(c, g, &how, part, REDUCE_AVG);
    how.algorithm = NULL;
    all_gather(c, g, &how, whole, part, NULL);
    barrier(c, g, &how);
    buffer_free(whole);
    buffer_free(part);
}

static void expect_traffic(struct ranks *ranks, int ranks_count, const char *op, uint64_t count, uint64_t messages,
                           uint64_t bytes)
{
    uint64_t sum_messages = 0, sum_bytes = 0;
    for (int r = 0; r < ranks_count; r++) {
        int rows = 0;
        for (int i = 0; i < communicator_traffic_count(ranks->communicators[r]); i++) {
            const struct traffic *t = communicator_traffic(ranks->communicators[r], i);
            if (strcmp(t->op, op) != 0)
                continue;
            rows++;
            REQUIRE(t->count == count);
            sum_messages += t->messages;
            sum_bytes += t->bytes;
        }
        REQUIRE(rows == 1);
    }
    REQUIRE(sum_messages == messages);
    REQUIRE(sum_bytes == bytes);
}

/* Messages and bytes over all ranks are what the algorithms' files say, without the uncounted elements,
 * in the wire's format, and the transport was told the same. A group of one is counted with none. */
START_TEST(traffic_is_what_algorithms_cost)
{
    for (int p = 1; p <= 7; p++) {
        struct ranks ranks = {.mesh = mesh_line(p), .body = traffic_body, .context = _i ? "fold" : "ring"};
        ranks_run(&ranks);
        uint64_t n = (uint64_t)p, rounds = 0, sent = 0, bytes = 0;
        while ((1u << rounds) < n)
            rounds++;
        expect_traffic(&ranks, p, "reduce_scatter", 1, n * (n - 1), n * (n - 1) * REAL * 2);
        expect_traffic(&ranks, p, "all_reduce", 2, 2 * 2 * n * (n - 1), 2 * 2 * (n - 1) * REAL * 2);
        expect_traffic(&ranks, p, "all_gather", 1, n * (n - 1), n * (n - 1) * REAL * 2);
        expect_traffic(&ranks, p, "barrier", 1, n * rounds, 0);
        for (int r = 0; r < p; r++) {
            uint64_t own = 0;
            for (int i = 0; i < communicator_traffic_count(ranks.communicators[r]); i++) {
                own += communicator_traffic(ranks.communicators[r], i)->messages;
                bytes += communicator_traffic(ranks.communicators[r], i)->bytes;
            }
            ck_assert_uint_eq(own, transport_sent(machine_rank(ranks.machine, r)).messages);
            sent += transport_sent(machine_rank(ranks.machine, r)).bytes;
        }
        ck_assert_uint_eq(sent, bytes);
        ranks_done(&ranks);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("transfers");
    TCase *tcase = tcase_create("transfers");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, barrier_holds, 1, 8);
    tcase_add_loop_test(tcase, transfers, 0, 2);
    tcase_add_loop_test(tcase, ring_shifts, 1, 6);
    tcase_add_loop_test(tcase, traffic_is_what_algorithms_cost, 0, 2);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
