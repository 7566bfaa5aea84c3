/* test_groups: meshes, groups by name and by axes, several groups at work at once. */
#include "tests/support/ranks.h"
#include "tests/support/run_suite.h"

#include "sim/hash.h"
#include "sim/random.h"

/* Ranks stand row-major, and moving along an axis keeps all other coordinates. */
START_TEST(mesh_is_row_major)
{
    struct mesh mesh = {.axes = 3, .name = {"pp", "dp_replicate", "dp_shard"}, .size = {2, 3, 5}};
    ck_assert_int_eq(mesh_ranks(&mesh), 30);
    ck_assert_int_eq(mesh_axis(&mesh, "dp_shard"), 2);
    ck_assert_int_eq(mesh_axis(&mesh, "tp"), -1);
    for (int rank = 0; rank < 30; rank++) {
        ck_assert_int_eq(mesh_coordinate(&mesh, rank, "pp"), rank / 15);
        ck_assert_int_eq(mesh_coordinate(&mesh, rank, "dp_replicate"), rank / 5 % 3);
        ck_assert_int_eq(mesh_coordinate(&mesh, rank, "dp_shard"), rank % 5);
        ck_assert_int_eq(mesh_coordinate(&mesh, rank, "tp"), 0);
        ck_assert_int_eq(mesh_rank_at(&mesh, rank, "dp_replicate", 1), rank / 15 * 15 + 5 + rank % 5);
    }
}
END_TEST

static uint32_t ids[RANKS_MAX][4];
static void groups_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    const char *const axes[] = {"dp_replicate", "dp_shard"};
    struct group *dp = communicator_group_over(c, "dp", axes, 2);
    REQUIRE(dp == communicator_group_over(c, "dp", axes, 2));
    REQUIRE(dp->size == 6);
    for (int i = 0; i < 6; i++)
        REQUIRE(dp->ranks[i] == rank / 6 * 6 + i);
    REQUIRE(dp->me == rank % 6);
    struct group *shard = communicator_group(c, "dp_shard"), *pp = communicator_group(c, "pp");
    REQUIRE(shard->size == 3);
    REQUIRE(pp->size == 2);
    REQUIRE(pp->ranks[1] == rank % 6 + 6);
    REQUIRE(!communicator_group(c, "tp"));
    REQUIRE(communicator_group(c, "world")->size == 12);
    REQUIRE(communicator_group(c, "self")->size == 1);
    ids[rank][0] = dp->id, ids[rank][1] = shard->id, ids[rank][2] = pp->id;
    ids[rank][3] = communicator_group(c, "self")->id;
    REQUIRE(!communicator_set_algorithm(c, "all_reduce", "nonsense"));
    REQUIRE(!communicator_set_algorithm(c, "nonsense", "ring"));
    REQUIRE(communicator_set_algorithm(c, "all_reduce", "fold"));
}

/* Members of one group have one id; groups of other names or members have others. */
START_TEST(group_ids)
{
    struct ranks ranks = {
        .mesh = {.axes = 3, .name = {"pp", "dp_replicate", "dp_shard"}, .size = {2, 2, 3}}, .body = groups_body};
    ranks_run(&ranks);
    ranks_done(&ranks);
    for (int r = 0; r < 12; r++)
        for (int q = 0; q < 12; q++) {
            ck_assert_int_eq(ids[r][0] == ids[q][0], r / 6 == q / 6);
            ck_assert_int_eq(ids[r][1] == ids[q][1], r / 3 == q / 3);
            ck_assert_int_eq(ids[r][2] == ids[q][2], r % 6 == q % 6);
            ck_assert_int_eq(ids[r][3] == ids[q][3], r == q);
            ck_assert_uint_ne(ids[r][0], ids[q][1]);
        }
}
END_TEST

/* Not exact in any order of additions: a wrong order shows. */
static double noise(int member, size_t i)
{
    struct random_stream stream = random_stream(5, "order");
    return (double)(float)random_normal_at(&stream, (uint64_t)member * 1000 + i); /* the same in fp32 and fp64 */
}

static uint64_t mesh_digests[6];
static void mesh_body(struct communicator *c, int rank, void *context)
{
    (void)context;
    struct group *row = communicator_group(c, "dp_shard"), *column = communicator_group(c, "dp_replicate");
    struct group *world = communicator_group(c, "world");
    struct comm how = at_step(&site_reduce, 0), move = at_step(&site_move, 0);
    struct buffer shard = buffer_new(7, FORMAT_FP32, FORMAT_FP32), full = buffer_new(21, FORMAT_FP32, FORMAT_FP32);
    for (size_t i = 0; i < 21; i++)
        put(full, i, noise(rank, i));
    /* Column 1 makes a call in its column group first, the others last: groups do not wait for each other. */
    if (row->me == 1)
        all_reduce(c, column, &how, full, REDUCE_AVG);
    for (int round = 0; round < 3; round++) {
        reduce_scatter(c, row, &how, shard, full, NULL, REDUCE_SUM);
        all_reduce(c, column, &how, shard, REDUCE_SUM);
        all_gather(c, row, &move, full, shard, NULL);
    }
    if (row->me != 1)
        all_reduce(c, column, &how, full, REDUCE_AVG);
    all_reduce(c, world, &how, full, REDUCE_MAX);
    struct hash hash;
    uint64_t digest[2];
    hash_init(&hash);
    hash_reals(&hash, full.data, full.count, FORMAT_FP32);
    hash_finish(&hash, digest);
    mesh_digests[rank] = digest[0];
    buffer_free(shard);
    buffer_free(full);
}

/* Groups of a 2 x 3 mesh at work at the same time, members of different groups in different orders: the
 * same bits for every interleaving and number of threads. */
START_TEST(groups_at_once)
{
    uint64_t first[6];
    for (int k = 0; k < 12; k++) {
        struct ranks ranks = {.mesh = {.axes = 2, .name = {"dp_replicate", "dp_shard"}, .size = {2, 3}},
                              .body = mesh_body, .threads = k % 3 + 1, .interleave = (uint64_t)(k / 3)};
        struct mismatch mismatch;
        ranks_run(&ranks);
        ck_assert_int_eq(ranks.outcome, MACHINE_FINISHED);
        ck_assert_int_eq(match_calls(ranks.communicators, 6, true, &mismatch, 1), 0);
        if (k == 0)
            memcpy(first, mesh_digests, sizeof first);
        ck_assert_mem_eq(first, mesh_digests, sizeof first);
        ranks_done(&ranks);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("groups");
    TCase *tcase = tcase_create("groups");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, mesh_is_row_major);
    tcase_add_test(tcase, group_ids);
    tcase_add_test(tcase, groups_at_once);
    suite_add_tcase(suite, tcase);
    return run_suite(suite, CK_NOFORK);
}
