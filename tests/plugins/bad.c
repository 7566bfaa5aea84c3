/* bad: a shared object that is no plug-in, in the way that BAD says: for tests/test_plugins.sh. */
#include <hpsim.h>
#include <stdlib.h>

enum { NO_ENTRY = 1, NULL_ENTRY, OLD, SHORT, NAMELESS, EMPTY, TAKEN, EXPRESSION, SCHEDULE, CRASHES, OPERATION, TWO_ALGORITHMS, TWO_SCHEDULES, TWO_LOSSES };

#if BAD == 1 /* NO_ENTRY: an enumerator is nothing to the preprocessor */
int something_else(void);
int something_else(void)
{
    return 1;
}
#else
static int run(const struct hpsim_collective *collective)
{
    (void)collective;
    return 0;
}

static int order(int stages, int microbatches, int stage, struct hpsim_action *ret_actions)
{
    int m;
    (void)stages;
    (void)stage;
    for (m = 0; m < microbatches; m++) {
        ret_actions[2 * m] = (struct hpsim_action){HPSIM_BACKWARD, m};
        ret_actions[2 * m + 1] = (struct hpsim_action){HPSIM_FORWARD, m};
    }
    return 2 * microbatches;
}

static const struct hpsim_algorithm algorithms[] = {{BAD == OPERATION ? "all_sum" : "all_reduce", BAD == TAKEN ? "ring" : "mine", run},
                                                   {BAD == TWO_ALGORITHMS ? "all_reduce" : "all_gather", "mine", run}};
static const struct hpsim_schedule schedules[] = {{"backwards", "backward before forward", order}, {BAD == TWO_SCHEDULES ? "backwards" : "sdrawkcab", "the same", order}};
static const struct hpsim_loss losses[] = {{"mine", "with an expression that is none", "n", BAD == EXPRESSION ? "1/Q" : "1/M", HPSIM_COMBINE_MEAN, "1", "1/(n*M*D)", "1/N"},
                                          {BAD == TWO_LOSSES ? "mine" : "yours", "right", "n", "1/M", HPSIM_COMBINE_MEAN, "1", "1/(n*M*D)", "1/N"}};

const struct hpsim_description *hpsim_plugin(void)
{
    static struct hpsim_description description = {HPSIM_ABI, sizeof(struct hpsim_description), "bad", NULL, algorithms, 2, schedules, 2, losses, 2};
    if (BAD == NULL_ENTRY) return NULL;
    if (BAD == OLD) description.abi = 77;
    if (BAD == SHORT) description.size = 12;
    if (BAD == NAMELESS) description.name = "";
    if (BAD == EMPTY) description.algorithms_count = description.schedules_count = description.losses_count = 0;
    if (BAD == CRASHES) abort();
    return &description;
}
#endif
