/* all_reduce_root: an algorithm of the all-reduce, by a reduction to member 0 and a broadcast from it. Member 0 adds the others
 * in ascending order, r[0] + r[1] + ..., as hpsim's own "fold" does: so both give the same bits.
 *
 *   four ranks, one message each way
 *     0 <- 1, 0 <- 2, 0 <- 3       member 0 adds
 *     0 -> 1, 0 -> 2, 0 -> 3       and sends the sum
 *
 * Limits: member 0 does all the work. */
#include <hpsim.h>

static int run(const struct hpsim_collective *c)
{
    if (c->member != 0) return c->send(c->call, 0, 0, c->members) || c->receive(c->call, 0, 0, c->members);
    for (int m = 1; m < c->members; m++) {
        if (c->receive_add(c->call, m, 0, c->members)) return 1;
    }
    for (int m = 1; m < c->members; m++) {
        if (c->send(c->call, m, 0, c->members)) return 1;
    }
    return 0;
}

static const struct hpsim_algorithm algorithms[] = {{"all_reduce", "root", run}};

static const struct hpsim_description description = {
    .abi = HPSIM_ABI, .size = sizeof(struct hpsim_description), .name = "all_reduce_root", .algorithms = algorithms, .algorithms_count = 1,
};

const struct hpsim_description *hpsim_plugin(void)
{
    return &description;
}
