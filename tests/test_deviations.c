/* test_deviations: what each deviation of a communication site does to numbers, ledgers, log and traffic.
 *
 * Four steps on three ranks; in each a sum, a gather, a scattered sum, a shift and a transfer 0 -> 1.
 * The value of an element says step, rank and position; results are recorded for the test to look at. */
#include "tests/support/ranks.h"
#include "tests/support/run_suite.h"

enum { P = 3, N = 7, STEPS = 4 };
enum result { SUM, GATHERED, SCATTERED, SHIFTED, SENT, RESULTS };

static const struct site sites[RESULTS] = {
    {"t.sum", SITE_COMMUNICATION, "t", FACET_REDUCES, ""}, {"t.gather", SITE_COMMUNICATION, "t", 0, ""},
    {"t.scatter", SITE_COMMUNICATION, "t", FACET_REDUCES, ""},
    {"t.shift", SITE_COMMUNICATION, "t", FACET_POINT_TO_POINT, ""},
    {"t.send", SITE_COMMUNICATION, "t", FACET_POINT_TO_POINT, ""},
};
static double values[STEPS][P][RESULTS][P * N];
static int times[STEPS][P][RESULTS][STEPS][P];

static double code(int step, int rank, size_t i)
{
    return step * 1000 + rank * 100 + (double)i;
}
static double summed(int step, size_t i)
{
    return code(step, 0, i) + code(step, 1, i) + code(step, 2, i);
}

static void fill(struct buffer b, int step, int rank)
{
    for (size_t i = 0; i < b.count; i++)
        put(b, i, code(step, rank, i));
    came_from(b, step, rank);
}

static void record(struct buffer b, int step, int rank, enum result which)
{
    for (size_t i = 0; i < b.count; i++)
        values[step][rank][which][i] = at(b, i);
    for (int s = 0; s < STEPS; s++)
        for (int r = 0; r < P; r++)
            times[step][rank][which][s][r] = times_of(b, s, r);
}

static struct comm how_for(enum result which, int step)
{
    return at_step(&sites[which], step);
}

static void program(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    for (int step = 0; step < STEPS; step++) {
        struct buffer part = buffer_new(N, FORMAT_FP64, FORMAT_FP64), out = buffer_new(N, FORMAT_FP64, FORMAT_FP64);
        struct buffer whole = buffer_new(P * N, FORMAT_FP64, FORMAT_FP64);
        fill(part, step, rank);
        struct comm how = how_for(SUM, step);
        all_reduce(c, g, &how, part, REDUCE_SUM);
        record(part, step, rank, SUM);
        fill(part, step, rank);
        how = how_for(GATHERED, step);
        all_gather(c, g, &how, whole, part, NULL);
        record(whole, step, rank, GATHERED);
        fill(whole, step, rank);
        how = how_for(SCATTERED, step);
        reduce_scatter(c, g, &how, out, whole, NULL, REDUCE_AVG);
        record(out, step, rank, SCATTERED);
        how = how_for(SHIFTED, step);
        ring_shift(c, g, &how, out, part, 1);
        record(out, step, rank, SHIFTED);
        how = how_for(SENT, step);
        if (rank == 0)
            send_and_wait(c, g, &how, part, 1, 5, SEND_ASYNC);
        if (rank == 1)
            receive(c, g, &how, out, 0, 5);
        record(out, step, rank, SENT);
        buffer_free(part);
        buffer_free(out);
        buffer_free(whole);
    }
}

static struct ranks run;
static uint64_t hits;

/* rank, step: -1 everywhere. */
static void run_with(enum result which, const char *deviation, const char *text, double value, int rank, int step)
{
    struct armed armed = {.site = &sites[which], .value = value};
    for (int i = 0; i < communication_deviation_count(); i++)
        if (strcmp(communication_deviation(i)->name, deviation) == 0)
            armed.deviation = communication_deviation(i);
    ck_assert_ptr_nonnull(armed.deviation);
    strcpy(armed.text, text);
    if (rank >= 0)
        armed.rank = (struct at_list){1, {rank}};
    if (step >= 0)
        armed.step = (struct at_list){1, {step}};
    memset(values, 0, sizeof values);
    memset(times, 0, sizeof times);
    run = (struct ranks){.mesh = mesh_line(P), .body = program, .plan = site_plan_new(P)};
    site_plan_arm(run.plan, &armed);
    ranks_run(&run);
    hits = site_hits(run.plan, 0);
}

static int done(bool finished, struct mismatch *ret)
{
    int count = match_calls(run.communicators, P, run.outcome == MACHINE_FINISHED, ret, 1);
    ck_assert_int_eq(run.outcome, finished ? MACHINE_FINISHED : MACHINE_DEADLOCK);
    ranks_done(&run);
    site_plan_free(run.plan);
    return count;
}

/* Step's result is as in a healthy run. */
static bool healthy(int step, int rank, enum result which)
{
    size_t mine = (size_t)rank * N;
    int from = which == SENT ? 0 : (rank + P - 1) % P;
    for (size_t i = 0; i < (which == GATHERED ? P * N : N); i++) {
        double want = which == SUM ? summed(step, i)
                    : which == GATHERED ? code(step, (int)(i / N), i % N)
                    : which == SCATTERED ? summed(step, mine + i) / P
                    : code(step, from, i);
        if (values[step][rank][which][i] != want)
            return false;
    }
    for (int s = 0; s < STEPS; s++)
        for (int r = 0; r < P; r++) {
            bool in = s == step && (which <= SCATTERED || r == from);
            if (times[step][rank][which][s][r] != in)
                return false;
        }
    return true;
}

/* All results are healthy but `which` from `step` on, at `rank` (-1: any). */
static void expect_healthy_but(enum result which, int rank, int step)
{
    for (int s = 0; s < STEPS; s++)
        for (int r = 0; r < P; r++)
            for (int k = 0; k < RESULTS; k++)
                if ((k != SENT || r == 1) && !((enum result)k == which && (rank < 0 || r == rank) && s == step))
                    ck_assert_msg(healthy(s, r, (enum result)k), "step %d rank %d %s", s, r, sites[k].name);
}

/* skip on all ranks: local data kept, nothing logged or sent, logs agree. */
START_TEST(skip)
{
    struct mismatch m;
    for (int which = 0; which < RESULTS; which++) {
        run_with((enum result)which, "skip", "", 0, -1, 2);
        ck_assert_uint_eq(hits, which == SENT ? 2 : 3);
        expect_healthy_but((enum result)which, -1, 2);
        for (int r = 0; r < P; r++) {
            ck_assert_int_eq(communicator_calls(run.communicators[r]), 4 * STEPS - (which != SENT));
            const double *v = values[2][r][which];
            if (which == SUM || which == SHIFTED)
                ck_assert_double_eq(v[3], code(2, r, 3));
            if (which == SCATTERED)
                ck_assert_double_eq(v[3], code(2, r, (size_t)r * N + 3)); /* not divided */
            if (which == GATHERED) {
                ck_assert_double_eq(v[r * N + 3], code(2, r, 3));
                ck_assert(isnan(v[(r + 1) % P * N + 3])); /* what was in out */
            }
            if (which != SENT) {
                ck_assert_int_eq(times[2][r][which][2][r], 1);
                ck_assert_int_eq(times[2][r][which][2][(r + 1) % P], 0);
            }
        }
        if (which == SENT)
            ck_assert_double_eq(values[2][1][SENT][3], values[2][1][SHIFTED][3]);
        ck_assert_int_eq(done(true, &m), 0);
    }
}
END_TEST

/* drop on one rank: the others wait for it and get the next call's data, or wait for ever. */
START_TEST(drop)
{
    struct mismatch m;
    run_with(SUM, "drop", "", 0, 1, 1);
    ck_assert_uint_eq(hits, 1);
    ck_assert_double_eq(values[1][1][SUM][3], code(1, 1, 3));
    ck_assert_int_ge(done(run.outcome == MACHINE_FINISHED, &m), 1);
    ck_assert_int_eq(m.rank, 1);
    run_with(SENT, "drop", "", 0, 0, 3); /* the last send: its receiver stays */
    ck_assert_int_eq(done(false, &m), 0);
}
END_TEST

/* stale: the result of the step before, with that step's ledger; at the first step the true one. */
START_TEST(stale)
{
    struct mismatch m;
    for (int which = 0; which < RESULTS; which++)
        for (int rank = -1; rank < 2; rank++) {
            run_with((enum result)which, "stale", "", 0, rank, -1);
            ck_assert_uint_gt(hits, 0);
            for (int step = 0; step < STEPS; step++)
                for (int r = 0; r < P; r++) {
                    bool touched = rank < 0 || rank == r || (which == SENT && rank == 0);
                    int then = touched && step > 0 ? step - 1 : step;
                    if (which == SENT && r != 1)
                        continue;
                    for (int i = 0; i < RESULTS; i++)
                        if (i != which && i != SENT)
                            ck_assert(healthy(step, r, (enum result)i));
                    double want = which == SUM ? summed(then, 4)
                                : which == GATHERED ? code(then, 0, 4)
                                : which == SCATTERED ? summed(then, (size_t)r * N + 4) / P
                                : code(then, which == SENT ? 0 : (r + P - 1) % P, 4);
                    ck_assert_double_eq(values[step][r][which][4], want);
                    ck_assert_int_eq(times[step][r][which][then][which == SENT ? 0 : (r + P - 1) % P], 1);
                    if (then != step)
                        ck_assert_int_eq(times[step][r][which][step][which == SENT ? 0 : (r + P - 1) % P], 0);
                }
            ck_assert_int_eq(done(true, &m), 0);
        }
}
END_TEST

/* scale and corrupt change the numbers where the fault says; scale the ledger's weights with them. */
START_TEST(scale_and_corrupt)
{
    struct mismatch m;
    for (int which = 0; which < RESULTS; which++) {
        int rank = 1;
        run_with((enum result)which, "scale", "", 0.5, rank, 2);
        expect_healthy_but((enum result)which, rank, 2);
        double healthy_value = which == SUM ? summed(2, 4)
                             : which == GATHERED ? code(2, 0, 4)
                             : which == SCATTERED ? summed(2, N + 4) / P
                             : code(2, 0, 4);
        ck_assert_double_eq(values[2][1][which][4], healthy_value / 2);
        ck_assert_int_eq(done(true, &m), 0);
        run_with((enum result)which, "corrupt", "5", 0, rank, 2);
        expect_healthy_but((enum result)which, rank, 2);
        ck_assert(isnan(values[2][1][which][5]));
        ck_assert_double_eq(values[2][1][which][4], healthy_value);
        ck_assert_int_eq(done(true, &m), 0);
    }
    run_with(SENT, "scale", "", 0.5, -1, 2); /* both sides pass the site: once only */
    ck_assert_double_eq(values[2][1][SENT][4], code(2, 0, 4) / 2);
    ck_assert_uint_eq(hits, 1);
    ck_assert_int_eq(done(true, &m), 0);
}
END_TEST

/* wrong-group: alone, on all ranks, it keeps its own; on one rank the logs tell. */
START_TEST(wrong_group)
{
    struct mismatch m;
    for (int which = 0; which < SENT; which++) {
        run_with((enum result)which, "wrong-group", "self", 0, -1, 1);
        expect_healthy_but((enum result)which, -1, 1);
        for (int r = 0; r < P; r++)
            for (int q = 0; q < P; q++)
                ck_assert_int_eq(times[1][r][which][1][q], q == r);
        ck_assert_double_eq(values[1][2][which][4], code(1, 2, 4)); /* a gather: its part comes first */
        ck_assert_int_eq(done(true, &m), 0);
        run_with((enum result)which, "wrong-group", "world", 0, -1, 1); /* as large, so all is well */
        expect_healthy_but((enum result)which, -1, 9);
        ck_assert_int_eq(done(true, &m), 0);
    }
    run_with(SUM, "wrong-group", "self", 0, 2, 1);
    ck_assert_int_ge(done(run.outcome == MACHINE_FINISHED, &m), 1);
    ck_assert_int_eq(m.rank, 2);
}
END_TEST

/* A larger group than the buffers were made for: what does not fit is cut, what is not there is NaN. */
static void larger_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp_shard");
    struct comm how = at_step(&sites[GATHERED], 0), add = at_step(&sites[SCATTERED], 0);
    struct buffer part = buffer_new(N, FORMAT_FP64, FORMAT_FP64), whole = buffer_new(2 * N, FORMAT_FP64, FORMAT_FP64);
    fill(part, 0, rank % 3);
    all_gather(c, g, &how, whole, part, NULL);
    for (size_t i = 0; i < 2 * N; i++) /* ranks 0 and 1 of the world, whoever asks */
        REQUIRE(at(whole, i) == code(0, (int)(i / N), i % N));
    fill(whole, 0, 0);
    reduce_scatter(c, g, &add, part, whole, NULL, REDUCE_SUM);
    if (rank < 2)
        REQUIRE(at(part, 2) == 6 * code(0, 0, (size_t)rank * N + 2));
    else
        REQUIRE(isnan(at(part, 2)));
    buffer_free(part);
    buffer_free(whole);
}

START_TEST(wrong_group_of_another_size)
{
    run = (struct ranks){.mesh = {.axes = 2, .name = {"dp_replicate", "dp_shard"}, .size = {3, 2}}, .body = larger_body,
                         .plan = site_plan_new(6)};
    for (int i = 0; i < communication_deviation_count(); i++)
        if (strcmp(communication_deviation(i)->name, "wrong-group") == 0) {
            struct armed armed = {.site = &sites[GATHERED], .deviation = communication_deviation(i), .text = "world"};
            site_plan_arm(run.plan, &armed);
            armed.site = &sites[SCATTERED];
            site_plan_arm(run.plan, &armed);
        }
    ranks_run(&run);
    ck_assert_int_eq(run.outcome, MACHINE_FINISHED);
    ranks_done(&run);
    site_plan_free(run.plan);
}
END_TEST

/* wrong-op, wrong-format, shrink-count on one rank: numbers as they fall, and the logs name the rank. */
START_TEST(wrong_arguments)
{
    struct mismatch m;
    run_with(SUM, "wrong-op", "avg", 0, 1, 2);
    expect_healthy_but(SUM, 1, 2);
    ck_assert_double_eq(values[2][1][SUM][4], summed(2, 4) / 3);
    ck_assert_int_eq(done(true, &m), 1);
    ck_assert_int_eq(m.rank, 1);
    ck_assert_str_eq(m.purpose, "t.sum");
    run_with(SCATTERED, "wrong-op", "sum", 0, -1, 2);
    ck_assert_double_eq(values[2][1][SCATTERED][4], summed(2, N + 4));
    ck_assert_int_eq(done(true, &m), 0);

    run_with(GATHERED, "wrong-format", "bf16", 0, -1, 3);
    for (size_t i = 0; i < P * N; i++)
        ck_assert_double_eq(values[3][2][GATHERED][i], format_round(FORMAT_BF16, code(3, (int)(i / N), i % N)));
    ck_assert_int_eq(communicator_traffic(run.communicators[0], communicator_traffic_count(run.communicators[0]) - 1)
                     ->format, FORMAT_BF16);
    ck_assert_int_eq(done(true, &m), 0);
    for (int rank = 0; rank < 2; rank++) {
        run_with(SENT, "wrong-format", "bf16", 0, rank, 3);
        ck_assert_double_eq(values[3][1][SENT][5], format_round(FORMAT_BF16, code(3, 0, 5)));
        ck_assert_int_eq(done(true, &m), 1);
        ck_assert_int_eq(m.rank, rank);
        ck_assert_int_eq(m.step, 3);
    }

    run_with(SUM, "shrink-count", "", 0, -1, 2);
    ck_assert_double_eq(values[2][1][SUM][N - 2], summed(2, N - 2));
    ck_assert_int_eq(times[2][1][SUM][2][0], 0); /* not in every element */
    ck_assert_int_eq(times[2][1][SUM][2][1], 1);
    ck_assert_int_eq(done(true, &m), 0);
    for (int which = 0; which < RESULTS; which++) {
        run_with((enum result)which, "shrink-count", "", 0, 1, 2);
        ck_assert_int_eq(done(true, &m), 1);
        ck_assert_int_eq(m.rank, 1);
        ck_assert_int_eq(m.step, 2);
    }
}
END_TEST

/* permute-chunks: parts one place off, halves where there is one part. */
START_TEST(permute_chunks)
{
    struct mismatch m;
    run_with(GATHERED, "permute-chunks", "", 0, 1, 2);
    expect_healthy_but(GATHERED, 1, 2);
    ck_assert_double_eq(values[2][1][GATHERED][3], code(2, 1, 3));
    ck_assert_double_eq(values[2][1][GATHERED][2 * N + 3], code(2, 0, 3));
    ck_assert_int_eq(done(true, &m), 0);
    run_with(SCATTERED, "permute-chunks", "", 0, -1, 2);
    ck_assert_double_eq(values[2][1][SCATTERED][3], summed(2, 2 * N + 3) / P);
    ck_assert_double_eq(values[2][2][SCATTERED][3], summed(2, 3) / P);
    ck_assert_int_eq(done(true, &m), 0);
    run_with(SENT, "permute-chunks", "", 0, -1, 2);
    ck_assert_double_eq(values[2][1][SENT][0], code(2, 0, 3));
    ck_assert_double_eq(values[2][1][SENT][4], code(2, 0, 0));
    ck_assert_int_eq(done(true, &m), 0);
}
END_TEST

/* duplicate: a reduction holds the contribution twice, in numbers and ledger; a message goes out twice. */
START_TEST(duplicate)
{
    struct mismatch m;
    char text[256];
    run_with(SUM, "duplicate", "", 0, 1, 2);
    ck_assert_double_eq(values[2][0][SUM][4], summed(2, 4) + code(2, 1, 4));
    ck_assert_int_eq(times[2][0][SUM][2][1], 2);
    ck_assert_int_eq(times[2][0][SUM][2][0], 1);
    ck_assert_int_eq(done(true, &m), 0);
    run_with(SENT, "duplicate", "", 0, -1, 1);
    ck_assert(healthy(1, 1, SENT));
    ck_assert_double_eq(values[2][1][SENT][4], code(1, 0, 4)); /* the second copy */
    ck_assert_int_eq(times[2][1][SENT][1][0], 1);
    ck_assert_int_eq(machine_unreceived(run.machine, text, sizeof text), 1);
    ck_assert_int_eq(done(true, &m), 0);
    run_with(GATHERED, "duplicate", "", 0, 1, 1);
    ck_assert(healthy(1, 1, GATHERED)); /* but its neighbour takes the second copy for the next part */
    ck_assert_double_eq(values[1][2][GATHERED][N + 4], code(1, 1, 4));
    ck_assert_double_eq(values[1][2][GATHERED][4], code(1, 1, 4));
    ck_assert_int_eq(times[1][2][GATHERED][1][1], 2);
    ck_assert_int_eq(times[1][2][GATHERED][1][0], 0);
    ck_assert_int_eq(machine_unreceived(run.machine, text, sizeof text), P - 1);
    ck_assert_int_eq(done(true, &m), 0);
}
END_TEST

static void rooted_body(struct communicator *c, int rank, void *context)
{
    struct comm how = at_step(&site_move, 0);
    struct group *g = communicator_group(c, "dp");
    struct buffer b = buffer_new(N, FORMAT_FP64, FORMAT_FP64), all = buffer_new(P * N, FORMAT_FP64, FORMAT_FP64);
    fill(b, 0, rank);
    broadcast(c, g, &how, b, 1);
    *(bool *)context &= at(b, 3) == code(0, 2, 3) && times_of(b, 0, 2) == 1;
    gather(c, g, &how, all, b, NULL, 1);
    *(bool *)context &= isnan(at(all, 3)); /* rank 1 believes rank 2 to be the root */
    buffer_free(b);
    buffer_free(all);
}

/* wrong-root and wrong-peer: the next one, or the argument's. */
START_TEST(wrong_root_and_peer)
{
    struct mismatch m;
    bool right = true;
    run = (struct ranks){.mesh = mesh_line(P), .body = rooted_body, .context = &right, .plan = site_plan_new(P)};
    for (int i = 0; i < communication_deviation_count(); i++)
        if (strcmp(communication_deviation(i)->name, "wrong-root") == 0) {
            struct armed armed = {.site = &site_move, .deviation = communication_deviation(i)};
            site_plan_arm(run.plan, &armed);
        }
    ranks_run(&run);
    ck_assert(right);
    ck_assert_int_eq(done(true, &m), 0);
    run_with(SENT, "wrong-peer", "", 0, 0, STEPS - 1);
    char text[256];
    ck_assert_int_eq(machine_unreceived(run.machine, text, sizeof text), 1); /* rank 2 has it */
    ck_assert_int_eq(machine_deadlock(run.machine)->blocked[0].rank, 1);
    ck_assert_str_eq(machine_deadlock(run.machine)->blocked[0].purpose, "t.send");
    ck_assert_str_eq(machine_deadlock(run.machine)->blocked[0].group, "dp");
    ck_assert_int_eq(done(false, &m), 0);
    run_with(SHIFTED, "wrong-peer", "", 0, -1, 2);
    ck_assert_double_eq(values[2][0][SHIFTED][4], code(2, 1, 4)); /* two places on */
    ck_assert_int_eq(done(true, &m), 0);
}
END_TEST

/* swap-order is not done here, and not counted as hit here. */
START_TEST(swap_order_is_not_ours)
{
    struct mismatch m;
    run_with(SENT, "swap-order", "", 0, -1, -1);
    ck_assert_uint_eq(hits, 0);
    expect_healthy_but(SENT, -1, 9);
    ck_assert_int_eq(done(true, &m), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("deviations");
    TCase *tcase = tcase_create("deviations");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, skip);
    tcase_add_test(tcase, drop);
    tcase_add_test(tcase, stale);
    tcase_add_test(tcase, scale_and_corrupt);
    tcase_add_test(tcase, wrong_group);
    tcase_add_test(tcase, wrong_group_of_another_size);
    tcase_add_test(tcase, wrong_arguments);
    tcase_add_test(tcase, permute_chunks);
    tcase_add_test(tcase, duplicate);
    tcase_add_test(tcase, wrong_root_and_peer);
    tcase_add_test(tcase, swap_order_is_not_ours);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
