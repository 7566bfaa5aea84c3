/* GPipe: all forwards, then all backwards. F0 .. F(m-1), B0 .. B(m-1); m micro-batches in flight.
 * Source: Huang et al. 2019 (GPipe); PyTorch ScheduleGPipe. */
#include "model/schedule.h"

static void compute(const struct schedule *schedule, int pp, int microbatches, int stage, struct action_list *ret_list)
{
    (void)pp;
    for (int m = 0; m < microbatches; m++) action_list_add(ret_list, ACTION_FORWARD, stage, m);
    for (int m = 0; m < microbatches; m++) action_list_add(ret_list, ACTION_BACKWARD, stage, m);
}

static int in_flight(const struct schedule *schedule, int pp, int microbatches, int stage)
{
    (void)pp;
    (void)stage;
    return microbatches;
}

const struct schedule schedule_gpipe = {"GPipe", "all forwards, then all backwards", compute, in_flight};
