/* norms: what the norm of a sharded gradient is, by the collectives that compute it, for shards whose figures are public:
 * two of norms 10 and sqrt(20) have together 10.954, the root of the sum of their squares; their mean, 7.236, is what a
 * framework clipped with that averaged the ranks' norms instead (DeepSpeed #8475). */
#include "tests/support/ranks.h"
#include "tests/support/run_suite.h"

static double global[2], mean[2];

static void body(struct communicator *c, int rank, void *context)
{
    (void)context;
    static const double shards[2][2] = {{6, 8}, {2, 4}};
    struct group *group = communicator_group(c, "dp");
    struct comm how = at_step(&site_reduce, 0);
    double squares = shards[rank][0] * shards[rank][0] + shards[rank][1] * shards[rank][1], norm = sqrt(squares);
    struct buffer sum = {&squares, 1, FORMAT_FP64, FORMAT_FP64, NULL}, average = {&norm, 1, FORMAT_FP64, FORMAT_FP64, NULL};
    all_reduce(c, group, &how, sum, REDUCE_SUM);
    all_reduce(c, group, &how, average, REDUCE_AVG);
    global[rank] = sqrt(squares);
    mean[rank] = norm;
}

START_TEST(root_of_the_sum_and_mean_of_roots)
{
    struct ranks ranks = {.mesh = mesh_line(2), .body = body};
    ranks_run(&ranks);
    ranks_done(&ranks);
    for (int rank = 0; rank < 2; rank++) {
        ck_assert_double_eq_tol(global[rank], 10.954, 5e-4);
        ck_assert_double_eq_tol(mean[rank], 7.236, 5e-4);
    }
    ck_assert(global[0] == global[1] && mean[0] == mean[1]);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("norms");
    TCase *tcase = tcase_create("norms");
    tcase_add_test(tcase, root_of_the_sum_and_mean_of_roots);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
