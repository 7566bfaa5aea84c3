/* schedule_one_more: a pipeline schedule, 1F1B with one more micro-batch in flight: a stage warms up with stages - stage + 1
 * forwards, then does one backward and one forward in turn, then what is left of the backwards. A stage then has an activation
 * waiting when its neighbour is late, at the price of one more kept. */
#include <hpsim.h>

static int order(int stages, int microbatches, int stage, struct hpsim_action *ret_actions)
{
    int warm = stages - stage + 1, count = 0;
    if (warm > microbatches) warm = microbatches;
    for (int m = 0; m < warm; m++) ret_actions[count++] = (struct hpsim_action){HPSIM_FORWARD, m};
    for (int m = 0; m < microbatches; m++) {
        ret_actions[count++] = (struct hpsim_action){HPSIM_BACKWARD, m};
        if (m + warm < microbatches) ret_actions[count++] = (struct hpsim_action){HPSIM_FORWARD, m + warm};
    }
    return count;
}

static const struct hpsim_schedule schedules[] = {{"1F1B-one-more", "1F1B with one more micro-batch in flight", order}};

static const struct hpsim_description description = {
    .abi = HPSIM_ABI, .size = sizeof(struct hpsim_description), .name = "schedule_one_more", .schedules = schedules, .schedules_count = 1,
};

const struct hpsim_description *hpsim_plugin(void)
{
    return &description;
}
