/* match: do all members of each group make the same calls in the same order? Reads the logs of calls. */
#ifndef COLLECTIVES_MATCH_H
#define COLLECTIVES_MATCH_H

#include "collectives/communicator.h"

/* group and purpose live as long as the machine and the sites. */
struct mismatch {
    const char *group; uint64_t sequence;   /* the first call of that group that differs */
    int rank;                               /* who deviates: the minority; the higher rank where it is even */
    int other;                              /* one that does not */
    const char *purpose;                    /* the deviating rank's site ("" where it made no such call) */
    int step, layer, microbatch;            /* of the deviating call, else of the other's */
    char text[256];                         /* "rank 3 calls all_reduce(sum, 64 x fp32), rank 0 reduce_scatter(...)" */
};

/* communicators[ranks]; entries may be NULL. Also finds point-to-point messages whose two sides differ in
 * count or format. finished: whether the run ended (a deadlock leaves trailing calls unmatched, which is
 * then no mismatch by itself). Fills up to max, one a group instance; returns how many there are. */
int match_calls(struct communicator *const *communicators, int ranks, bool finished, struct mismatch *ret_list,
                int max);

#endif
