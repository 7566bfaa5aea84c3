/* test_match: each way in which members' calls can differ is found and names the right rank; right runs
 * are silent. */
#include "tests/support/ranks.h"
#include "tests/support/run_suite.h"

#include <stdio.h>

enum mistake {
    NONE, OTHER_OP, OTHER_COUNT, OTHER_FORMAT, OTHER_REDUCE, OTHER_ROOT, OTHER_SITE, OTHER_SHIFT, SWAPPED, LOST_LAST,
    LOST_LAYER, MISTAKES
};

struct plan { enum mistake mistake; int rank; };

static struct buffer zeros(size_t count)
{
    struct buffer b = buffer_new(count, FORMAT_FP32, FORMAT_FP32);
    memset(b.data, 0, count * 4);
    return b;
}

/* Four layers are gathered, then sums, a broadcast, a shift. Pipeline rows {0,1,2} and {3,4,5}. */
static void program(struct communicator *c, int rank, void *context)
{
    const struct plan *plan = context;
    enum mistake mistake = rank == plan->rank ? plan->mistake : NONE;
    struct group *g = communicator_group(c, "dp");
    size_t p = (size_t)g->size;
    struct buffer part = zeros(5), whole = zeros(5 * p), sum = zeros(11);
    struct comm move = at_step(&site_move, 3), reduce = at_step(&site_reduce, 3);
    for (int layer = 0; layer < 4; layer++) {
        move.where.layer = layer;
        if (mistake != LOST_LAYER || layer != 1)
            all_gather(c, g, &move, whole, part, NULL);
    }
    move.where.layer = -1;
    if (mistake == OTHER_OP || mistake == SWAPPED)
        reduce_scatter(c, g, &reduce, part, whole, NULL, REDUCE_SUM);
    if (mistake == OTHER_COUNT)
        sum.count--;
    if (mistake == OTHER_FORMAT)
        sum.wire = FORMAT_BF16;
    if (mistake != OTHER_OP)
        all_reduce(c, g, mistake == OTHER_SITE ? &move : &reduce, sum,
                   mistake == OTHER_REDUCE ? REDUCE_MAX : REDUCE_SUM);
    if (mistake != SWAPPED)
        reduce_scatter(c, g, &reduce, part, whole, NULL, REDUCE_SUM);
    ring_shift(c, g, &move, part, part, mistake == OTHER_SHIFT ? 2 : 1);
    if (mistake != LOST_LAST)
        broadcast(c, g, &move, part, mistake == OTHER_ROOT ? 1 : 0);
    buffer_free(part);
    buffer_free(whole);
    buffer_free(sum);
}

static int run(struct mesh mesh, struct plan plan, struct mismatch *list, int max)
{
    struct ranks ranks = {.mesh = mesh, .body = program, .context = &plan};
    ranks_run(&ranks);
    int count = match_calls(ranks.communicators, mesh_ranks(&mesh), ranks.outcome == MACHINE_FINISHED, list, max);
    ranks_done(&ranks);
    return count;
}

static const struct mesh two_rows = {.axes = 2, .name = {"pp", "dp"}, .size = {2, 3}};

/* No mistake, no mismatch: groups of 1 to 6 and two groups at once. */
START_TEST(right_runs_are_silent)
{
    struct mismatch m;
    for (int p = 1; p <= 6; p++)
        ck_assert_int_eq(run(mesh_line(p), (struct plan){NONE, 0}, &m, 1), 0);
    ck_assert_int_eq(run(two_rows, (struct plan){NONE, 0}, &m, 1), 0);
}
END_TEST

/* Each mistake of one rank in the second row is one mismatch that names the rank, the call and the group. */
START_TEST(each_mistake_names_its_rank)
{
    static const struct { enum mistake mistake; int sequence; const char *says; } cases[] = {
        {OTHER_OP, 4, "calls reduce_scatter(sum, 15 x fp32) as call 4 of group dp, rank 3 all_reduce(sum, 11 x fp32)"},
        {OTHER_COUNT, 4, "calls all_reduce(sum, 10 x fp32) as call 4 of group dp, rank 3 all_reduce(sum, 11 x fp32)"},
        {OTHER_FORMAT, 4, "calls all_reduce(sum, 11 x bf16) as call 4 of group dp, rank 3 all_reduce(sum, 11 x fp32)"},
        {OTHER_REDUCE, 4, "calls all_reduce(max, 11 x fp32) as call 4 of group dp, rank 3 all_reduce(sum, 11 x fp32)"},
        {OTHER_SITE, 4, "all_reduce(sum, 11 x fp32) for test.move step 3 as call 4"},
        {OTHER_SHIFT, 6, "ring_shift(5 x fp32, shift 2) as call 6 of group dp, rank 3 ring_shift(5 x fp32, shift 1)"},
        {SWAPPED, 4, "calls reduce_scatter(sum, 15 x fp32) as call 4"},
        {OTHER_ROOT, 7, "broadcast(5 x fp32, root 1) as call 7 of group dp, rank 3 broadcast(5 x fp32, root 0)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int rank = 4; rank <= 5; rank++) {
            struct mismatch m = {0};
            char says[256];
            ck_assert_int_eq(run(two_rows, (struct plan){cases[i].mistake, rank}, &m, 1), 1);
            snprintf(says, sizeof says, "rank %d ", rank);
            ck_assert_msg(strncmp(m.text, says, strlen(says)) == 0 && strstr(m.text, cases[i].says), "%s", m.text);
            ck_assert_int_eq(m.rank, rank);
            ck_assert_int_eq(m.other, 3);
            ck_assert_uint_eq(m.sequence, (uint64_t)cases[i].sequence);
            ck_assert_int_eq(m.step, 3);
        }
}
END_TEST

/* The first member may be the wrong one too: the majority is right. */
START_TEST(majority_is_right)
{
    struct mismatch m;
    ck_assert_int_eq(run(two_rows, (struct plan){OTHER_REDUCE, 0}, &m, 1), 1);
    ck_assert_int_eq(m.rank, 0);
    ck_assert_int_eq(m.other, 1);
    ck_assert_str_eq(m.purpose, "test.reduce");
    ck_assert_int_eq(run(mesh_line(2), (struct plan){OTHER_REDUCE, 0}, &m, 1), 1);
    ck_assert_int_eq(m.rank, 1); /* of two, the higher rank */
}
END_TEST

/* A lost call shifts all that follow; the report goes back to where it was lost. */
START_TEST(lost_call_is_located)
{
    struct mismatch m;
    ck_assert_int_eq(run(two_rows, (struct plan){LOST_LAYER, 4}, &m, 1), 1);
    ck_assert_int_eq(m.rank, 4);
    ck_assert_uint_eq(m.sequence, 1);
    ck_assert_int_eq(m.layer, 2);
    ck_assert_msg(strstr(m.text, "for test.move step 3 layer 2 as call 1") && strstr(m.text, "layer 1"), "%s", m.text);
}
END_TEST

/* A call that one member never makes is a mismatch of a finished run, none by itself of a deadlocked one. */
START_TEST(missing_call)
{
    struct mismatch m;
    struct plan plan = {LOST_LAST, 4};
    struct ranks ranks = {.mesh = two_rows, .body = program, .context = &plan};
    ranks_run(&ranks);
    ck_assert_int_eq(ranks.outcome, MACHINE_FINISHED); /* a broadcast's leaf is not missed */
    ck_assert_int_eq(match_calls(ranks.communicators, 6, true, &m, 1), 1);
    ck_assert_int_eq(m.rank, 4);
    ck_assert_str_eq(m.purpose, "");
    ck_assert_int_eq(m.step, 3);
    ck_assert_msg(strstr(m.text, "rank 4 calls nothing as call 7 of group dp, rank 3 broadcast"), "%s", m.text);
    ck_assert_int_eq(match_calls(ranks.communicators, 6, false, &m, 1), 0);
    communicator_free(ranks.communicators[4]);
    ranks.communicators[4] = NULL; /* what is not known is not judged */
    ck_assert_int_eq(match_calls(ranks.communicators, 6, true, &m, 1), 0);
    ranks_done(&ranks);
}
END_TEST

struct transfers { int wrong; bool sender, format; };
static void chain(struct communicator *c, int rank, void *context)
{
    const struct transfers *t = context;
    struct group *g = communicator_group(c, "dp");
    struct comm how = at_step(&site_move, 2);
    struct buffer in = zeros(9), out = zeros(9);
    if (rank == t->wrong) {
        struct buffer *which = t->sender ? &in : &out;
        if (t->format)
            which->wire = FORMAT_BF16;
        else
            which->count--;
    }
    if (rank > 0)
        receive(c, g, &how, out, rank - 1, 1);
    if (rank < g->size - 1)
        send_and_wait(c, g, &how, in, rank + 1, 1, SEND_ASYNC);
    in.count = out.count = 9;
    buffer_free(in);
    buffer_free(out);
}

/* Point to point: the side whose count or format is the rarer one in the run is named, sender or receiver. */
START_TEST(transfers_name_the_odd_side)
{
    for (int k = 0; k < 4; k++) {
        struct transfers t = {.wrong = 2, .sender = k & 1, .format = k & 2};
        struct ranks ranks = {.mesh = mesh_line(5), .body = chain, .context = &t};
        struct mismatch m;
        ranks_run(&ranks);
        ck_assert_int_eq(match_calls(ranks.communicators, 5, true, &m, 1), 1);
        ck_assert_int_eq(m.rank, 2);
        ck_assert_int_eq(m.other, t.sender ? 3 : 1);
        ck_assert_str_eq(m.purpose, "test.move");
        ck_assert_int_eq(m.step, 2);
        ck_assert_msg(strstr(m.text, t.format ? "9 x bf16" : "8 x fp32") != NULL, "%s", m.text);
        ranks_done(&ranks);
    }
    struct transfers none = {.wrong = -1};
    struct ranks ranks = {.mesh = mesh_line(5), .body = chain, .context = &none};
    struct mismatch m;
    ranks_run(&ranks);
    ck_assert_int_eq(match_calls(ranks.communicators, 5, true, &m, 1), 0);
    ranks_done(&ranks);
}
END_TEST

static void both_rows_wrong(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct comm how = at_step(&site_reduce, 0);
    struct buffer b = zeros(7);
    all_reduce(c, communicator_group(c, "dp"), &how, b, rank % 3 == 2 ? REDUCE_AVG : REDUCE_SUM);
    buffer_free(b);
}

/* One mismatch a group instance; more than fit are counted. */
START_TEST(one_a_group)
{
    struct ranks ranks = {.mesh = two_rows, .body = both_rows_wrong};
    struct mismatch m[2] = {0};
    ranks_run(&ranks);
    ck_assert_int_eq(match_calls(ranks.communicators, 6, true, m, 1), 2);
    ck_assert_int_eq(m[0].rank, 2);
    ck_assert_ptr_null(m[1].group);
    ck_assert_int_eq(match_calls(ranks.communicators, 6, true, m, 2), 2);
    ck_assert_int_eq(m[1].rank, 5);
    ranks_done(&ranks);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("match");
    TCase *tcase = tcase_create("match");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, right_runs_are_silent);
    tcase_add_test(tcase, each_mistake_names_its_rank);
    tcase_add_test(tcase, majority_is_right);
    tcase_add_test(tcase, lost_call_is_located);
    tcase_add_test(tcase, missing_call);
    tcase_add_test(tcase, transfers_name_the_odd_side);
    tcase_add_test(tcase, one_a_group);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
