/* test_deviations_calls: deviations within one call: of asynchronous collectives, of sums, and beside probes.
 *
 * One call on a few ranks, with a deviation armed at its site. */
#include "tests/support/ranks.h"
#include "tests/support/run_suite.h"

enum { P = 3, N = 7 };
static const struct site site_async = {"t.async", SITE_COMMUNICATION, "t", FACET_REDUCES | FACET_ASYNCHRONOUS, ""};

static double code(int rank, size_t i)
{
    return (rank + 1) * 100 + (double)i;
}
static double summed(size_t i)
{
    return code(0, i) + code(1, i) + code(2, i);
}

static struct buffer coded(int rank, size_t count)
{
    struct buffer b = buffer_new(count, FORMAT_FP64, FORMAT_FP64);
    for (size_t i = 0; i < count; i++)
        put(b, i, code(rank, i));
    came_from(b, 1, rank);
    return b;
}

static void run_armed(const char *deviation, const char *text, int rank, void (*body)(struct communicator *, int, void *),
                      void *context, uint64_t hits)
{
    struct armed armed = {.site = &site_async};
    for (int i = 0; i < communication_deviation_count(); i++)
        if (strcmp(communication_deviation(i)->name, deviation) == 0)
            armed.deviation = communication_deviation(i);
    ck_assert_ptr_nonnull(armed.deviation);
    ck_assert_uint_eq(armed.deviation->needs & ~site_async.facets, 0);
    strcpy(armed.text, text);
    if (rank >= 0)
        armed.rank = (struct at_list){1, {rank}};
    struct ranks run = {.mesh = mesh_line(P), .body = body, .context = context, .plan = site_plan_new(P)};
    site_plan_arm(run.plan, &armed);
    ranks_run(&run);
    ck_assert_int_eq(run.outcome, MACHINE_FINISHED);
    ck_assert_uint_eq(site_hits(run.plan, 0), hits);
    struct mismatch mismatch;
    if (strcmp(deviation, "shrink-count") != 0)
        ck_assert_int_eq(match_calls(run.communicators, P, true, &mismatch, 1), 0);
    for (int r = 0; r < P; r++)
        ck_assert_int_eq(transport_unwaited(machine_rank(run.machine, r)), 0);
    ranks_done(&run);
    site_plan_free(run.plan);
}

/* ---- asynchronous ---- */

/* late: on rank 1 the wait gives nothing; the next communication does. The others have it. */
static void late_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1), other = at_step(&site_move, 1);
    struct buffer in = coded(rank, N), out = buffer_new(P * N, FORMAT_FP64, FORMAT_FP64), sum = coded(rank, N);
    struct collective *gathered = all_gather_start(c, g, &how, out, in, NULL);
    struct collective *reduced = all_reduce_start(c, g, &how, sum, sum, REDUCE_SUM);
    collective_wait(c, reduced);
    REQUIRE(at(sum, 3) == (rank == 1 ? code(1, 3) : summed(3)));
    REQUIRE(times_of(sum, 1, 0) == (rank != 1 || rank == 0));
    collective_wait(c, gathered); /* for rank 1 the sum arrives by now, not the parts */
    REQUIRE(at(sum, 3) == summed(3) && times_of(sum, 1, 0) == 1);
    for (size_t i = 0; i < P * N; i++)
        REQUIRE(rank == 1 ? isnan(at(out, i)) : at(out, i) == code((int)i / N, i % N));
    REQUIRE(out.ledger->count == (rank == 1 ? 0 : P));
    barrier(c, g, &other);
    for (size_t i = 0; i < P * N; i++)
        REQUIRE(at(out, i) == code((int)i / N, i % N));
    REQUIRE(out.ledger->count == P);
    buffer_free(in);
    buffer_free(out);
    buffer_free(sum);
}

START_TEST(late)
{
    run_armed("late", "", 1, late_body, NULL, 2);
}
END_TEST

/* reuse-buffer: what rank 1 gave reads zero, of nobody; its buffer itself stays. In place and not. */
static void reuse_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1);
    struct buffer in = coded(rank, N), out = buffer_new(P * N, FORMAT_FP64, FORMAT_FP64), sum = coded(rank, N);
    collective_wait(c, all_gather_start(c, g, &how, out, in, NULL));
    collective_wait(c, all_reduce_start(c, g, &how, sum, sum, REDUCE_SUM));
    for (size_t i = 0; i < P * N; i++)
        REQUIRE(at(out, i) == (i / N == 1 ? 0 : code((int)i / N, i % N)));
    for (size_t i = 0; i < N; i++) {
        REQUIRE(at(sum, i) == summed(i) - code(1, i));
        REQUIRE(at(in, i) == code(rank, i));
    }
    for (int r = 0; r < P; r++) {
        REQUIRE(times_of(sum, 1, r) == (r != 1));
        REQUIRE(times_of(out, 1, r) == (r != 1));
    }
    buffer_free(in);
    buffer_free(out);
    buffer_free(sum);
}

START_TEST(reuse_buffer)
{
    run_armed("reuse-buffer", "", 1, reuse_body, NULL, 2);
}
END_TEST

/* Point to point: reuse-buffer at the sender, late at the receiver; the other side is no hit. */
static void transfer_body(struct communicator *c, int rank, void *context)
{
    bool is_late = *(const bool *)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1), other = at_step(&site_move, 1);
    struct buffer in = coded(rank, N), out = coded(rank, N);
    if (rank == 0)
        send_and_wait(c, g, &how, in, 1, 5, SEND_ASYNC);
    if (rank == 1) {
        receive(c, g, &how, out, 0, 5);
        for (size_t i = 0; i < N; i++)
            REQUIRE(at(out, i) == (is_late ? code(1, i) : 0));
        REQUIRE(times_of(out, 1, 1) == is_late && times_of(out, 1, 0) == 0);
    }
    barrier(c, g, &other);
    if (rank == 1 && is_late)
        REQUIRE(at(out, 3) == code(0, 3) && times_of(out, 1, 0) == 1 && times_of(out, 1, 1) == 0);
    REQUIRE(at(in, 3) == code(rank, 3));
    buffer_free(in);
    buffer_free(out);
}

START_TEST(transfers)
{
    bool is_late = _i;
    run_armed(is_late ? "late" : "reuse-buffer", "", -1, transfer_body, &is_late, 1);
}
END_TEST

/* alias: the output is right, but rank 1's input holds its beginning now, ledger too. */
static void alias_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1);
    struct buffer in = coded(rank, N), out = buffer_new(P * N, FORMAT_FP64, FORMAT_FP64);
    struct buffer large = coded(rank, P * N), part = buffer_new(N, FORMAT_FP64, FORMAT_FP64);
    collective_wait(c, all_gather_start(c, g, &how, out, in, NULL));
    collective_wait(c, reduce_scatter_start(c, g, &how, part, large, NULL, REDUCE_SUM));
    bool here = rank == 1;
    for (size_t i = 0; i < N; i++) {
        REQUIRE(at(out, N + i) == code(1, i));
        REQUIRE(at(in, i) == code(here ? 0 : rank, i));
        REQUIRE(at(part, i) == summed((size_t)rank * N + i));
        REQUIRE(at(large, i) == (here ? summed(N + i) : code(rank, i)));
        REQUIRE(at(large, N + i) == code(rank, N + i));
    }
    REQUIRE(in.ledger->count == (here ? P : 1) && large.ledger->count == (here ? P : 1));
    buffer_free(in);
    buffer_free(out);
    buffer_free(large);
    buffer_free(part);
}

START_TEST(alias)
{
    run_armed("alias", "", 1, alias_body, NULL, 2);
}
END_TEST

/* What the communicator noted of rank 1's calls; the others' buffers were left alone. */
static void expect_hazards(struct communicator *c, int rank, enum hazard_kind kind, int count)
{
    REQUIRE(communicator_hazards(c) == (rank == 1 ? count : 0));
    for (int i = 0; i < communicator_hazards(c); i++) {
        const struct hazard *hazard = communicator_hazard(c, i);
        REQUIRE(hazard->kind == kind && hazard->site == &site_async && hazard->where.step == 1);
        REQUIRE((hazard->by == &site_move) == (kind == HAZARD_READ));
    }
}

struct hazard_due { enum hazard_kind kind; int count; };

/* Two asynchronous calls, whose results are read after their waits. */
static void hazards_body(struct communicator *c, int rank, void *context)
{
    const struct hazard_due *due = context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1), other = at_step(&site_move, 1);
    struct buffer in = coded(rank, N), out = buffer_new(P * N, FORMAT_FP64, FORMAT_FP64);
    struct buffer large = coded(rank, P * N), part = buffer_new(N, FORMAT_FP64, FORMAT_FP64);
    collective_wait(c, all_gather_start(c, g, &how, out, in, NULL));
    communicator_reads(c, out.data, P * N * sizeof(double), &site_move, other.where);
    collective_wait(c, reduce_scatter_start(c, g, &how, part, large, NULL, REDUCE_SUM));
    communicator_reads(c, part.data, N * sizeof(double), &site_move, other.where);
    barrier(c, g, &other);
    communicator_reads(c, part.data, N * sizeof(double), &site_move, other.where); /* by now it is there */
    expect_hazards(c, rank, due->kind, due->count);
    buffer_free(in);
    buffer_free(out);
    buffer_free(large);
    buffer_free(part);
}

START_TEST(hazards)
{
    static const struct { const char *deviation; struct hazard_due due; } cases[] = {
        {"late", {HAZARD_READ, 2}}, {"torn", {HAZARD_READ, 2}}, {"reuse-buffer", {HAZARD_OVERWRITTEN, 2}},
        {"free-source", {HAZARD_OVERWRITTEN, 2}}, {"alias", {HAZARD_ALIASED, 2}}, {"scale", {HAZARD_READ, 0}},
    };
    struct hazard_due due = cases[_i].due;
    run_armed(cases[_i].deviation, "", 1, hazards_body, &due, 2);
}
END_TEST

/* Nobody deviates: a program that reads before its wait, or writes what a call sends from, whether the members meet or
 * go by messages. */
static void careless_body(struct communicator *c, int rank, void *context)
{
    const bool *messages = context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1), other = at_step(&site_move, 1);
    struct buffer in = coded(rank, N), out = buffer_new(P * N, FORMAT_FP64, FORMAT_FP64);
    if (*messages)
        communicator_force_messages(c);
    struct collective *first = all_gather_start(c, g, &how, out, in, NULL);
    if (rank == 1)
        communicator_reads(c, (double *)out.data + P * N - 1, sizeof(double), &site_move, other.where);
    communicator_reads(c, (double *)out.data + P * N, sizeof(double), &site_move, other.where); /* beside it */
    collective_wait(c, first);
    expect_hazards(c, rank, HAZARD_READ, 1);
    struct collective *second = all_gather_start(c, g, &how, out, in, NULL);
    if (rank == 1)
        put(in, N - 1, -1);
    collective_wait(c, second);
    REQUIRE(communicator_hazards(c) == (rank == 1 ? 2 : 0));
    REQUIRE(rank != 1 || communicator_hazard(c, 1)->kind == HAZARD_OVERWRITTEN);
    buffer_free(in);
    buffer_free(out);
}

START_TEST(careless)
{
    bool messages = _i == 1;
    struct ranks run = {.mesh = mesh_line(P), .body = careless_body, .context = &messages};
    ranks_run(&run);
    ck_assert_int_eq(run.outcome, MACHINE_FINISHED);
    ranks_done(&run);
}
END_TEST

/* torn: the first half is there after the wait, the second one call later. free-source: NaN comes from rank 1. */
static void torn_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1), other = at_step(&site_move, 1);
    struct buffer in = coded(rank, N), out = buffer_new(P * N, FORMAT_FP64, FORMAT_FP64);
    collective_wait(c, all_gather_start(c, g, &how, out, in, NULL));
    for (size_t i = 0; i < P * N; i++)
        REQUIRE(rank == 1 && i >= P * N / 2 ? isnan(at(out, i)) : at(out, i) == code((int)i / N, i % N));
    barrier(c, g, &other);
    for (size_t i = 0; i < P * N; i++)
        REQUIRE(at(out, i) == code((int)i / N, i % N));
    buffer_free(in);
    buffer_free(out);
}

START_TEST(torn)
{
    run_armed("torn", "", 1, torn_body, NULL, 1);
}
END_TEST

static void freed_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1);
    struct buffer in = coded(rank, N), out = buffer_new(P * N, FORMAT_FP64, FORMAT_FP64);
    collective_wait(c, all_gather_start(c, g, &how, out, in, NULL));
    for (size_t i = 0; i < P * N; i++)
        REQUIRE(i / N == 1 ? isnan(at(out, i)) : at(out, i) == code((int)i / N, i % N));
    REQUIRE(times_of(out, 1, 1) == 0 && times_of(out, 1, 0) == 1 && at(in, 3) == code(rank, 3));
    buffer_free(in);
    buffer_free(out);
}

START_TEST(free_source)
{
    run_armed("free-source", "", 1, freed_body, NULL, 1);
}
END_TEST

/* swap-calls: rank 1's first call is its second. Both are waited for in the order in which the others made them, so that
 * the group never gets through; where nothing comes between start and wait nothing changes. */
static void swap_body(struct communicator *c, int rank, void *context)
{
    const bool *alone = context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1), other = at_step(&site_move, 1);
    struct buffer in = coded(rank, N), out = buffer_new(P * N, FORMAT_FP64, FORMAT_FP64), sum = coded(rank, N);
    struct collective *first = all_gather_start(c, g, &how, out, in, NULL);
    if (*alone)
        collective_wait(c, first);
    struct collective *second = all_reduce_start(c, g, &other, sum, sum, REDUCE_SUM);
    bool swapped = rank == 1 && !*alone;
    REQUIRE(communicator_calls(c) == 2 && (strcmp(communicator_call(c, 0)->op, "all_reduce") == 0) == swapped);
    if (!*alone)
        collective_wait(c, first);
    collective_wait(c, second);
    REQUIRE(at(sum, 3) == summed(3) && at(out, N + 3) == code(1, 3));
    buffer_free(in);
    buffer_free(out);
    buffer_free(sum);
}

START_TEST(swap_calls)
{
    bool alone = true;
    run_armed("swap-calls", "", 1, swap_body, &alone, 1);
    struct armed armed = {.site = &site_async, .rank = {1, {1}}};
    for (int i = 0; i < communication_deviation_count(); i++)
        if (strcmp(communication_deviation(i)->name, "swap-calls") == 0)
            armed.deviation = communication_deviation(i);
    alone = false;
    struct ranks run = {.mesh = mesh_line(P), .body = swap_body, .context = &alone, .plan = site_plan_new(P)};
    site_plan_arm(run.plan, &armed);
    ranks_run(&run);
    ck_assert_int_eq(run.outcome, MACHINE_DEADLOCK);
    struct mismatch mismatch;
    ck_assert_int_eq(match_calls(run.communicators, P, false, &mismatch, 1), 1);
    ck_assert_int_eq(mismatch.rank, 1);
    ranks_done(&run);
    site_plan_free(run.plan);
}
END_TEST

/* edges: the first and the last element of what was gathered are their neighbours'. */
static void edges_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1);
    struct buffer in = coded(rank, N), out = buffer_new(P * N, FORMAT_FP64, FORMAT_FP64), one = coded(rank, 1);
    all_gather(c, g, &how, out, in, NULL);
    for (size_t i = 0; i < P * N; i++) {
        size_t k = rank != 1 ? i : i == 0 ? 1 : i == P * N - 1 ? i - 1 : i;
        REQUIRE(at(out, i) == code((int)k / N, k % N));
    }
    all_reduce(c, g, &how, one, REDUCE_SUM);
    REQUIRE(at(one, 0) == summed(0));
    buffer_free(in);
    buffer_free(out);
    buffer_free(one);
}

START_TEST(edges)
{
    run_armed("edges", "", 1, edges_body, NULL, 2);
}
END_TEST

/* wrong-slot: rank 2 gathers in place, but gives what lies in slot 0. A sum at that site is no hit. */
static void wrong_slot_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1);
    struct buffer out = coded(rank, P * N), in = coded(rank, N), sum = coded(rank, N);
    in.data = (double *)out.data + rank * N;
    all_gather(c, g, &how, out, in, NULL);
    for (size_t i = 0; i < P * N; i++)
        REQUIRE(at(out, i) == (i >= 2 * N ? code(2, i - 2 * N) : code((int)i / N, i)));
    REQUIRE(times_of(out, 1, 0) == 1 && times_of(out, 1, 1) == 1 && times_of(out, 1, 2) == 0);
    all_reduce(c, g, &how, sum, REDUCE_SUM);
    REQUIRE(at(sum, 3) == summed(3));
    buffer_free(in);
    buffer_free(out);
    buffer_free(sum);
}

START_TEST(wrong_slot)
{
    run_armed("wrong-slot", "", 2, wrong_slot_body, NULL, 1);
}
END_TEST

/* ---- sums ---- */

static const char *const sum_algorithms[] = {"ring", "fold", "tree", "halving_doubling"};
enum { SUMS = sizeof sum_algorithms / sizeof *sum_algorithms };
struct expected { int lost; double factor; bool max; };

static void sums_body(struct communicator *c, int rank, void *context)
{
    const struct expected *expected = context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1);
    for (int a = 0; a < SUMS; a++) {
        struct buffer b = coded(rank, N), in = coded(rank, P * N), out = buffer_new(N, FORMAT_FP64, FORMAT_FP64);
        how.algorithm = sum_algorithms[a];
        all_reduce(c, g, &how, b, expected->max ? REDUCE_MAX : REDUCE_AVG);
        how.algorithm = NULL;
        reduce_scatter(c, g, &how, out, in, NULL, REDUCE_AVG);
        for (size_t i = 0; i < N; i++) {
            size_t k = (size_t)rank * N + i;
            double sum = 0, sum_part = 0, max = 0;
            for (int m = 0; m < P; m++) {
                sum += m == expected->lost ? 0 : code(m, i);
                sum_part += m == expected->lost ? 0 : code(m, k);
                max = fmax(max, m == expected->lost ? 0 : code(m, i));
            }
            REQUIRE(fabs(at(b, i) - (expected->max ? max : sum * expected->factor)) <= 1e-12 * sum);
            REQUIRE(fabs(at(out, i) - sum_part * expected->factor) <= 1e-12 * sum_part);
        }
        for (int m = 0; m < P; m++) {
            REQUIRE(times_of(b, 1, m) == (m != expected->lost));
            REQUIRE(times_of(out, 1, m) == (m != expected->lost));
            if (m != expected->lost)
                REQUIRE(fabs(ledger_find(out.ledger, (struct origin){1, m, 0, 0})->scale - expected->factor) <= 1e-15);
        }
        buffer_free(b);
        buffer_free(in);
        buffer_free(out);
    }
}

/* drop-peer: the named member's contribution is lost in numbers and ledger, the last one's by default. */
/* copy-lost: rank 1 keeps what it had, numbers and ledger; the others have the sum with its part in it. */
static void copy_lost_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1);
    bool here = rank == 1;
    for (int a = 0; a < SUMS; a++) {
        struct buffer b = coded(rank, N), in = coded(rank, P * N), out = buffer_new(N, FORMAT_FP64, FORMAT_FP64);
        how.algorithm = sum_algorithms[a];
        all_reduce(c, g, &how, b, REDUCE_SUM);
        how.algorithm = NULL;
        reduce_scatter(c, g, &how, out, in, NULL, REDUCE_SUM);
        for (size_t i = 0; i < N; i++) {
            REQUIRE(at(b, i) == (here ? code(1, i) : summed(i)));
            REQUIRE(at(out, i) == (here ? code(1, N + i) : summed((size_t)rank * N + i)));
        }
        REQUIRE(b.ledger->count == (here ? 1 : P) && out.ledger->count == (here ? 1 : P) && times_of(out, 1, 1) == 1);
        buffer_free(b);
        buffer_free(in);
        buffer_free(out);
    }
}

START_TEST(copy_lost)
{
    run_armed("copy-lost", "", 1, copy_lost_body, NULL, 2 * SUMS);
}
END_TEST

/* lose-link: what rank 0 sends to rank 1 is zeros: rank 1's own part of a sum lacks rank 0, the others' don't. The ledgers
 * came along. */
static void lose_link_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1);
    struct buffer in = coded(rank, P * N), out = buffer_new(N, FORMAT_FP64, FORMAT_FP64), all = buffer_new(P * N, FORMAT_FP64, FORMAT_FP64),
                  own = coded(rank, N);
    how.algorithm = "fold";
    reduce_scatter(c, g, &how, out, in, NULL, REDUCE_SUM);
    how.algorithm = "direct";
    all_gather(c, g, &how, all, own, NULL);
    for (size_t i = 0; i < N; i++) {
        size_t k = (size_t)rank * N + i;
        REQUIRE(at(out, i) == summed(k) - (rank == 1 ? code(0, k) : 0));
        REQUIRE(at(all, i) == (rank == 1 ? 0 : code(0, i)) && at(all, 2 * N + i) == code(2, i));
    }
    REQUIRE(out.ledger->count == P && times_of(out, 1, 0) == 1);
    buffer_free(in);
    buffer_free(out);
    buffer_free(all);
    buffer_free(own);
}

START_TEST(lose_link)
{
    run_armed("lose-link", "0", 1, lose_link_body, NULL, 2);
}
END_TEST

/* premultiply: all members' contributions vanish, and their weights. */
static void premultiply_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1);
    struct buffer b = coded(rank, N);
    all_reduce(c, g, &how, b, REDUCE_SUM);
    for (size_t i = 0; i < N; i++)
        REQUIRE(at(b, i) == 0);
    REQUIRE(b.ledger->count == P);
    for (int k = 0; k < P; k++)
        REQUIRE(b.ledger->terms[k].scale == 0);
    buffer_free(b);
}

START_TEST(premultiply)
{
    run_armed("premultiply", "", -1, premultiply_body, NULL, P);
}
END_TEST

START_TEST(drop_peer)
{
    struct expected first = {.lost = 0, .factor = 1.0 / P}, last = {.lost = 2, .factor = 1.0 / P, .max = true};
    run_armed("drop-peer", "0", -1, sums_body, &first, 2 * SUMS);
    run_armed("drop-peer", "", -1, sums_body, &last, 2 * SUMS);
}
END_TEST

/* average-twice divides numbers and weights once more; average-first gives the average, but for rounding. */
START_TEST(averages)
{
    struct expected twice = {.lost = -1, .factor = 1.0 / (P * P)}, first = {.lost = -1, .factor = 1.0 / P};
    run_armed("average-twice", "", -1, sums_body, &twice, 2 * SUMS * P);
    run_armed("average-first", "", -1, sums_body, &first, 2 * SUMS * P);
}
END_TEST

/* In fp32 the two averages are not the same numbers: each is what its order of roundings gives. */
static void rounded_average_body(struct communicator *c, int rank, void *context)
{
    struct comm how = at_step(&site_async, 1);
    float data[N], *differ = context;
    for (int i = 0; i < N; i++)
        data[i] = 0.1f * (float)(rank * 5 + i + 1);
    how.algorithm = "fold";
    all_reduce(c, communicator_group(c, "dp"), &how, (struct buffer){data, N, FORMAT_FP32, FORMAT_FP32, NULL}, REDUCE_AVG);
    for (int i = 0; i < N; i++) {
        float third = 1.0f / 3, first = 0.1f * (float)(i + 1), second = 0.1f * (float)(i + 6), last = 0.1f * (float)(i + 11);
        float want = first * third + second * third + last * third;
        REQUIRE(data[i] == want);
        if (rank == 0)
            *differ += want != (first + second + last) / 3;
    }
}

START_TEST(average_first_rounds)
{
    float differ = 0;
    run_armed("average-first", "", -1, rounded_average_body, &differ, P);
    ck_assert_float_gt(differ, 0);
}
END_TEST

/* round-hops: partial sums are rounded to the argument's format; the contributions and the call are not. */
static void hops_body(struct communicator *c, int rank, void *context)
{
    enum format hop;
    REQUIRE(format_parse(context, &hop));
    struct comm how = at_step(&site_async, 1);
    struct buffer b = buffer_new(N, FORMAT_FP32, FORMAT_FP32);
    for (size_t i = 0; i < N; i++)
        put(b, i, 1.0 / (double)(rank * 7 + (int)i + 3));
    how.algorithm = "fold";
    all_reduce(c, communicator_group(c, "dp"), &how, b, REDUCE_SUM);
    for (size_t i = 0; i < N; i++) {
        float term[P];
        for (int m = 0; m < P; m++)
            term[m] = (float)(1.0 / (double)(m * 7 + (int)i + 3));
        double partial = format_round(hop, (double)(term[0] + term[1]));
        REQUIRE(at(b, i) == format_round(hop, (double)((float)partial + term[2])));
    }
    const struct call_record *call = communicator_call(c, 0);
    REQUIRE(call->format == FORMAT_FP32);
    REQUIRE(communicator_traffic(c, 0)->format == FORMAT_FP32);
    buffer_free(b);
}

START_TEST(round_hops)
{
    static char formats[][16] = {"bf16", "fp16", "fp8_e5m2"};
    for (int i = 0; i < 3; i++)
        run_armed("round-hops", formats[i], -1, hops_body, formats[i], P);
    run_armed("round-hops", "", -1, hops_body, formats[0], P);
}
END_TEST

/* ---- beside probes ---- */

enum { PROBES = 2, COUNTED = N - PROBES };

/* Probes of part p at the end of each: 1e6 * (p + 1) + which, of rank 0; they add up over ranks. */
static struct buffer probed(int rank, size_t parts)
{
    struct buffer b = buffer_new(N * parts, FORMAT_FP64, FORMAT_FP64);
    for (size_t i = 0; i < b.count; i++)
        put(b, i, i % N < COUNTED ? code(rank, i) : 1e6 * (double)(i / N + 1) + (double)(i % N));
    came_from(b, 1, rank);
    return b;
}

static void expect_probes(struct buffer b, size_t first_part, bool added)
{
    for (size_t i = 0; i < b.count; i++)
        if (i % N >= COUNTED)
            REQUIRE(at(b, i) == (added ? P : 1) * (1e6 * (double)(i / N + 1 + first_part) + (double)(i % N)));
}

static void probes_body(struct communicator *c, int rank, void *context)
{
    bool shrinks = *(const bool *)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1);
    how.uncounted = PROBES;
    for (int a = 0; a < SUMS; a++) {
        how.algorithm = sum_algorithms[a];
        struct buffer whole = probed(rank, 1);
        all_reduce(c, g, &how, whole, REDUCE_SUM);
        expect_probes(whole, 0, true);
        REQUIRE(at(whole, 0) == (shrinks ? summed(0) : summed(3))); /* parts of 3, 2, 2: moved by 3 */
        REQUIRE(at(whole, COUNTED - 1) == (shrinks ? code(rank, COUNTED - 1) : summed(2)));
        buffer_free(whole);
    }
    how.algorithm = NULL;
    struct buffer in = probed(rank, P), part = buffer_new(N, FORMAT_FP64, FORMAT_FP64);
    reduce_scatter(c, g, &how, part, in, NULL, REDUCE_SUM);
    expect_probes(part, (size_t)rank, true);
    size_t from = (size_t)(rank + 1) % P; /* permuted: the next part */
    if (shrinks) { /* counted elements one after the other, one fewer a part */
        size_t third = (size_t)rank * (COUNTED - 1);
        REQUIRE(at(part, 0) == summed(third / COUNTED * N + third % COUNTED));
    } else {
        REQUIRE(at(part, 0) == summed(from * N) && at(part, COUNTED - 1) == summed(from * N + COUNTED - 1));
    }
    struct buffer gathered = buffer_new(P * N, FORMAT_FP64, FORMAT_FP64), own = buffer_new(N, FORMAT_FP64, FORMAT_FP64);
    for (size_t i = 0; i < N; i++)
        put(own, i, i < COUNTED ? code(rank, i) : 1e6 * (rank + 1) + (double)i);
    all_gather(c, g, &how, gathered, own, NULL);
    expect_probes(gathered, 0, false);
    REQUIRE(at(gathered, 0) == code(shrinks ? 0 : 1, 0));
    REQUIRE(at(gathered, N) == code(shrinks ? 1 : 2, shrinks ? 1 : 0));
    buffer_free(in);
    buffer_free(part);
    buffer_free(gathered);
    buffer_free(own);
}

/* shrink-count and permute-chunks move the counted elements only: probes arrive, each at its place, complete. */
START_TEST(probes_stay)
{
    bool shrinks = _i;
    run_armed(shrinks ? "shrink-count" : "permute-chunks", "", -1, probes_body, &shrinks, P * (SUMS + 2));
}
END_TEST

/* On one rank only: messages are shorter than what the others expect, and still their probes fit. */
static void one_shrinks_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_async, 1);
    how.uncounted = PROBES;
    struct buffer in = probed(rank, P), part = buffer_new(N, FORMAT_FP64, FORMAT_FP64);
    reduce_scatter(c, g, &how, part, in, NULL, REDUCE_SUM);
    expect_probes(part, (size_t)rank, true);
    REQUIRE(rank == 1 || isnan(at(part, COUNTED - 1)));
    buffer_free(in);
    buffer_free(part);
}

START_TEST(probes_stay_where_one_shrinks)
{
    run_armed("shrink-count", "", 1, one_shrinks_body, NULL, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("deviations_calls");
    TCase *tcase = tcase_create("deviations_calls");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, late);
    tcase_add_test(tcase, reuse_buffer);
    tcase_add_loop_test(tcase, transfers, 0, 2);
    tcase_add_test(tcase, alias);
    tcase_add_loop_test(tcase, hazards, 0, 6);
    tcase_add_loop_test(tcase, careless, 0, 2);
    tcase_add_test(tcase, torn);
    tcase_add_test(tcase, free_source);
    tcase_add_test(tcase, swap_calls);
    tcase_add_test(tcase, edges);
    tcase_add_test(tcase, copy_lost);
    tcase_add_test(tcase, lose_link);
    tcase_add_test(tcase, premultiply);
    tcase_add_test(tcase, wrong_slot);
    tcase_add_test(tcase, drop_peer);
    tcase_add_test(tcase, averages);
    tcase_add_test(tcase, average_first_rounds);
    tcase_add_test(tcase, round_hops);
    tcase_add_loop_test(tcase, probes_stay, 0, 2);
    tcase_add_test(tcase, probes_stay_where_one_shrinks);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
