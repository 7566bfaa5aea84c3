/* GPipeReversed: all forwards, then all backwards, the last micro-batch's first, as in the paper's figure: what a stage
 * kept last it needs first. F0 .. F(m-1), B(m-1) .. B0; m micro-batches in flight. The last backward of a step is
 * micro-batch 0's: whoever takes the last index for the last one is wrong here.
 * Source: Huang et al. 2019 (GPipe), figure 2. */
#include "model/schedule.h"

static void compute(const struct schedule *schedule, int pp, int microbatches, int stage, struct action_list *ret_list)
{
    (void)pp;
    for (int m = 0; m < microbatches; m++) action_list_add(ret_list, ACTION_FORWARD, stage, m);
    for (int m = microbatches - 1; m >= 0; m--) action_list_add(ret_list, ACTION_BACKWARD, stage, m);
}

static int in_flight(const struct schedule *schedule, int pp, int microbatches, int stage)
{
    (void)pp;
    (void)stage;
    return microbatches;
}

const struct schedule schedule_gpipe_reversed = {"GPipeReversed", "all forwards, then all backwards, last micro-batch first", compute, in_flight};
