/* 1F1B: min(pp - stage, m) forwards to warm up, then one backward, one forward in turn, then the rest
 * of the backwards; at most min(pp - stage, m) micro-batches in flight.
 * Source: Narayanan et al. 2019 (PipeDream-flush); Megatron-LM; PyTorch Schedule1F1B. */
#include "model/schedule.h"

static int in_flight(const struct schedule *schedule, int pp, int microbatches, int stage)
{
    return pp - stage < microbatches ? pp - stage : microbatches;
}

static void compute(const struct schedule *schedule, int pp, int microbatches, int stage, struct action_list *ret_list)
{
    int warm = in_flight(schedule, pp, microbatches, stage);
    for (int m = 0; m < warm; m++) action_list_add(ret_list, ACTION_FORWARD, stage, m);
    for (int m = 0; m < microbatches; m++) {
        action_list_add(ret_list, ACTION_BACKWARD, stage, m);
        if (m + warm < microbatches) action_list_add(ret_list, ACTION_FORWARD, stage, m + warm);
    }
}

const struct schedule schedule_one_forward_one_backward = {
    "1F1B", "a warm-up, then one forward and one backward in turn", compute, in_flight,
};
