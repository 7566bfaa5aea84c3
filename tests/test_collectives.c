/* test_collectives: every registered algorithm against plain loops.
 *
 * Data is position-coded: the value says which member and which element it is, small enough that sums
 * are exact in bf16, so that results must be equal to the last bit. */
#include "tests/support/ranks.h"

#include "collectives/communicator_state.h"
#include "sim/random.h"

struct formats { enum format storage, wire; };
static const struct formats formats[] = {
    {FORMAT_FP64, FORMAT_FP64}, {FORMAT_FP32, FORMAT_FP32}, {FORMAT_FP32, FORMAT_BF16}, {FORMAT_FP64, FORMAT_BF16},
};
enum { FORMATS = sizeof formats / sizeof *formats };

static double code(int member, size_t i)
{
    return (double)((i * 7 + i / 5 + (size_t)member * 11) % 27 + 1); /* nine of them stay below 256 */
}

static double reduced(int size, size_t i, enum reduce_op op, struct formats f)
{
    double sum = 0, max = 0;
    for (int m = 0; m < size; m++) {
        sum += code(m, i);
        max = fmax(max, code(m, i));
    }
    if (op == REDUCE_MAX)
        return max;
    if (op == REDUCE_SUM)
        return sum;
    return format_round(f.wire, f.storage == FORMAT_FP64 ? sum / size : (double)((float)sum / (float)size));
}

static void expect_all_members(struct buffer b, int size, double scale)
{
    REQUIRE(b.ledger->count == size);
    for (int m = 0; m < size; m++) {
        REQUIRE(times_of(b, 1, m) == 1);
        REQUIRE(fabs(b.ledger->terms[m].scale - scale) <= 1e-15);
    }
}

static struct comm how_with(const struct site *site, int algorithm)
{
    struct comm how = at_step(site, 1);
    how.algorithm = collective_algorithm(algorithm)->name;
    return how;
}

static bool is_op(int algorithm, const char *op)
{
    return strcmp(collective_algorithm(algorithm)->op, op) == 0;
}

/* ---- the sweep ---- */

static void check_all_reduce(struct communicator *c, struct group *g, int a, size_t n, struct formats f,
                             enum reduce_op op)
{
    struct buffer b = buffer_new(n, f.storage, f.wire);
    for (size_t i = 0; i < n; i++)
        put(b, i, code(g->me, i));
    came_from(b, 1, g->me);
    struct comm how = how_with(&site_reduce, a);
    all_reduce(c, g, &how, b, op);
    for (size_t i = 0; i < n; i++)
        REQUIRE(at(b, i) == reduced(g->size, i, op, f));
    expect_all_members(b, g->size, op == REDUCE_AVG ? 1.0 / g->size : 1.0);
    buffer_free(b);
}

/* Parts of different sizes, some empty. */
static size_t uneven(int member, size_t n)
{
    return member % 3 == 1 ? 0 : n + (size_t)(member * 2);
}

static size_t fill_counts(size_t *counts, int size, size_t n, bool even)
{
    size_t total = 0;
    for (int m = 0; m < size; m++)
        total += counts[m] = even ? n : uneven(m, n);
    return total;
}

static void check_reduce_scatter(struct communicator *c, struct group *g, int a, size_t n, struct formats f,
                                 enum reduce_op op, bool even)
{
    size_t counts[RANKS_MAX], total = fill_counts(counts, g->size, n, even), mine = 0;
    for (int m = 0; m < g->me; m++)
        mine += counts[m];
    struct buffer in = buffer_new(total, f.storage, f.wire);
    struct buffer out = buffer_new(counts[g->me], f.storage, f.wire);
    for (size_t i = 0; i < total; i++)
        put(in, i, code(g->me, i));
    came_from(in, 1, g->me);
    struct comm how = how_with(&site_reduce, a);
    reduce_scatter(c, g, &how, out, in, even ? NULL : counts, op);
    for (size_t i = 0; i < out.count; i++)
        REQUIRE(at(out, i) == reduced(g->size, mine + i, op, f));
    expect_all_members(out, g->size, op == REDUCE_AVG ? 1.0 / g->size : 1.0);
    buffer_free(in);
    buffer_free(out);
}

static void check_gather(struct communicator *c, struct group *g, int a, size_t n, struct formats f, bool even,
                         int root, bool in_place)
{
    size_t counts[RANKS_MAX], total = fill_counts(counts, g->size, n, even), mine = 0;
    for (int m = 0; m < g->me; m++)
        mine += counts[m];
    struct buffer out = buffer_new(total, f.storage, f.wire);
    struct buffer in = buffer_new(counts[g->me], f.storage, f.wire), source = in;
    if (in_place)
        source.data = values_at(out.data, mine, f.storage);
    for (size_t i = 0; i < in.count; i++)
        put(source, i, code(g->me, mine + i));
    came_from(in, 1, g->me);
    struct comm how = how_with(&site_move, a);
    if (root < 0)
        all_gather(c, g, &how, out, source, even ? NULL : counts);
    else
        gather(c, g, &how, out, source, even ? NULL : counts, root);
    if (root < 0 || root == g->me) {
        size_t offset = 0;
        for (int m = 0; m < g->size; offset += counts[m++])
            for (size_t i = offset; i < offset + counts[m]; i++)
                REQUIRE(at(out, i) == code(m, i));
        expect_all_members(out, g->size, 1.0);
    }
    buffer_free(in);
    buffer_free(out);
}

static void check_broadcast(struct communicator *c, struct group *g, int a, size_t n, struct formats f, int root)
{
    struct buffer b = buffer_new(n, f.storage, f.wire);
    for (size_t i = 0; i < n; i++)
        put(b, i, code(g->me, i));
    came_from(b, 1, g->me);
    struct comm how = how_with(&site_move, a);
    broadcast(c, g, &how, b, root);
    for (size_t i = 0; i < n; i++)
        REQUIRE(at(b, i) == code(root, i));
    REQUIRE(b.ledger->count == 1);
    REQUIRE(times_of(b, 1, root) == 1);
    buffer_free(b);
}

static void check_case(struct communicator *c, struct group *g, int a, size_t n, struct formats f)
{
    for (int op = 0; op < REDUCE_COUNT; op++) {
        if (is_op(a, "all_reduce"))
            check_all_reduce(c, g, a, n, f, (enum reduce_op)op);
        for (int even = 0; even < 2 && is_op(a, "reduce_scatter"); even++)
            check_reduce_scatter(c, g, a, n, f, (enum reduce_op)op, even);
    }
    for (int even = 0; even < 2 && is_op(a, "all_gather"); even++)
        for (int in_place = 0; in_place < 2; in_place++)
            check_gather(c, g, a, n, f, even, -1, in_place);
    for (int root = 0; root < g->size; root++) {
        if (is_op(a, "gather"))
            check_gather(c, g, a, n, f, root % 2, root, false);
        if (is_op(a, "broadcast"))
            check_broadcast(c, g, a, n, f, root);
    }
}

static void sweep_body(struct communicator *c, int rank, void *context)
{
    (void)rank, (void)context;
    struct group *g = communicator_group(c, "dp");
    size_t p = (size_t)g->size;
    const size_t sizes[] = {0, 1, p - 1, p, p + 1, 53};
    for (int a = 0; a < collective_algorithm_count(); a++)
        for (int s = 0; s < 6; s++)
            for (int f = 0; f < FORMATS; f++)
                check_case(c, g, a, sizes[s], formats[f]);
}

/* Every algorithm gives, for 1 to 9 ranks and awkward sizes, in four pairs of formats, even and uneven,
 * exactly what plain loops give; ledgers hold every member once; no message is left over. */
START_TEST(sweep)
{
    struct ranks ranks = {.mesh = mesh_line(_i), .body = sweep_body, .threads = _i % 3 + 1, .interleave = (uint64_t)_i};
    char text[256];
    struct mismatch mismatch;
    ranks_run(&ranks);
    ck_assert_int_eq(ranks.outcome, MACHINE_FINISHED);
    ck_assert_int_eq(machine_unreceived(ranks.machine, text, sizeof text), 0);
    ck_assert_int_eq(match_calls(ranks.communicators, _i, true, &mismatch, 1), 0);
    for (int r = 0; r < _i; r++)
        ck_assert_int_eq(transport_unwaited(machine_rank(ranks.machine, r)), 0);
    ranks_done(&ranks);
}
END_TEST

/* ---- order of additions ---- */

enum { ORDER_COUNT = 29 };
static double noise(int member, size_t i)
{
    struct random_stream stream = random_stream(5, "order");
    return (double)(float)random_normal_at(&stream, (uint64_t)member * 1000 + i); /* the same in fp32 and fp64 */
}

static double add(double a, double b, struct formats f)
{
    double sum = f.storage == FORMAT_FP64 ? a + b : (double)((float)a + (float)b);
    return format_round(f.wire, sum);
}

/* Members first, first+1, ... (modulo size), one after the other. */
static double ordered(int size, int first, size_t i, struct formats f)
{
    double sum = format_round(f.wire, noise(first % size, i));
    for (int k = 1; k < size; k++)
        sum = add(sum, format_round(f.wire, noise((first + k) % size, i)), f);
    return sum;
}

static void order_body(struct communicator *c, int rank, void *context)
{
    (void)rank, (void)context;
    struct group *g = communicator_group(c, "dp");
    size_t p = (size_t)g->size;
    for (int a = 0; a < collective_algorithm_count(); a++)
        for (int k = 0; k < FORMATS && is_op(a, "all_reduce"); k++) {
            struct formats f = formats[k];
            struct buffer b = buffer_new(ORDER_COUNT, f.storage, f.wire);
            for (size_t i = 0; i < ORDER_COUNT; i++)
                put(b, i, noise(g->me, i));
            struct comm how = how_with(&site_reduce, a);
            all_reduce(c, g, &how, b, REDUCE_SUM);
            bool ring = strcmp(how.algorithm, "ring") == 0;
            size_t in_part = 0, part = 0;
            for (size_t i = 0; i < ORDER_COUNT; i++) {
                while (in_part == ORDER_COUNT / p + (part < ORDER_COUNT % p)) {
                    part++;
                    in_part = 0;
                }
                in_part++;
                int first = ring ? (int)part + 1 : 0;
                REQUIRE(at(b, i) == ordered(g->size, first, i, f));
                if (p == 2)
                    REQUIRE(at(b, i) == ordered(2, 0, i, f));
            }
            buffer_free(b);
        }
}

/* The bits are those of the order that the algorithm's file states, rounded after each addition: so all
 * members have the same bits, and ring and fold agree for two members. */
START_TEST(order_of_additions)
{
    struct ranks ranks = {.mesh = mesh_line(_i), .body = order_body};
    ranks_run(&ranks);
    ck_assert_int_eq(ranks.outcome, MACHINE_FINISHED);
    ranks_done(&ranks);
}
END_TEST

/* ---- ledgers tell ---- */

/* A ring whose rank 2 forgets to add its own to one part, as a wrong hop would. */
static void mutant_ring(struct operation *o)
{
    for (int step = -1; step < o->size - 1; step++) {
        struct part *mine = &o->parts[operation_member(o, -step - 2)];
        if (step < 0) {
            operation_send(o, operation_member(o, 1), mine);
            continue;
        }
        struct part sum;
        struct message *message = operation_receive(o, operation_member(o, -1), mine, &sum);
        if (o->me != 2 || step != 1)
            part_reduce(o, &sum, mine);
        if (step < o->size - 2)
            operation_send(o, operation_member(o, 1), &sum);
        else
            part_take(o, mine, &sum);
        operation_release(o, message);
    }
    all_gather_ring(o);
}
static const struct algorithm mutant = {OP_ALL_REDUCE, {"all_reduce", "mutant"}, mutant_ring};

static void mutant_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_reduce, 0);
    struct buffer b = buffer_new(13, FORMAT_FP64, FORMAT_FP64);
    for (size_t i = 0; i < 13; i++)
        put(b, i, code(rank, i));
    came_from(b, 1, rank);
    c->chosen[OP_ALL_REDUCE] = &mutant;
    all_reduce(c, g, &how, b, REDUCE_SUM);
    int wrong = 0;
    for (size_t i = 0; i < 13; i++)
        wrong += at(b, i) != reduced(g->size, i, REDUCE_SUM, formats[0]);
    REQUIRE(wrong == 2); /* one part of 3, 3, 3, 2, 2 */
    for (int m = 0; m < g->size; m++)
        REQUIRE(times_of(b, 1, m) == (m == 2 ? 0 : 1));
    buffer_free(b);
}

/* A contribution that is missing in a single part is missing in the ledger of the whole buffer. */
START_TEST(ledger_shows_a_missing_hop)
{
    struct ranks ranks = {.mesh = mesh_line(5), .body = mutant_body};
    ranks_run(&ranks);
    ck_assert_int_eq(ranks.outcome, MACHINE_FINISHED);
    ranks_done(&ranks);
}
END_TEST

static void no_ledger_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_reduce, 0);
    double one[4] = {rank, 1, 2, 3}, all[12] = {0};
    struct buffer part = {one, 4, FORMAT_FP64, FORMAT_FP64, NULL}, whole = {all, 12, FORMAT_FP64, FORMAT_FP64, NULL};
    all_gather(c, g, &how, whole, part, NULL);
    all_reduce(c, g, &how, whole, REDUCE_SUM);
    reduce_scatter(c, g, &how, part, whole, NULL, REDUCE_AVG);
    broadcast(c, g, &how, part, 1);
    REQUIRE(one[0] == 3.0);
    one[1] = NAN;
    if (rank == 1)
        one[1] = 5, one[2] = NAN;
    all_reduce(c, g, &how, part, REDUCE_MAX);
    REQUIRE(isnan(one[1]) && isnan(one[2]) && one[3] == 9);
}

/* Ledgers are optional; a NaN of any member is the maximum. */
START_TEST(without_ledgers)
{
    struct ranks ranks = {.mesh = mesh_line(3), .body = no_ledger_body};
    ranks_run(&ranks);
    ck_assert_int_eq(ranks.outcome, MACHINE_FINISHED);
    ranks_done(&ranks);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("collectives");
    TCase *tcase = tcase_create("collectives");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, sweep, 1, 10);
    tcase_add_loop_test(tcase, order_of_additions, 1, 8);
    tcase_add_test(tcase, ledger_shows_a_missing_hop);
    tcase_add_test(tcase, without_ledgers);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_set_fork_status(runner, CK_NOFORK);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
