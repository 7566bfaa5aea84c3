/* ring_lesson: what `hpsim explain ring` teaches, from a scenario's own inputs: who has which block at which step, what blocks weigh,
 * and what right and wrong ways of putting their results together make of the same numbers. All in fp64. */
#ifndef SCENARIOS_RING_LESSON_H
#define SCENARIOS_RING_LESSON_H

#include "model/attention_run.h"

enum merge_way { LESSON_RIGHT, LESSON_AVERAGE, LESSON_LAST, LESSON_SUM, LESSON_OWN, LESSON_BASE_2, LESSON_WITHOUT_ONE, LESSON_RESENT, LESSON_WAYS };
struct merge_lesson { const char *name, *how; double rel, max_abs, cosine; };
struct block_weight { int member; double lse, share; bool seen; };
struct ring_lesson {
    int members;
    int *due;                              /* [members * members]: 1 where some query of r sees some key of c */
    struct merge_lesson merges[LESSON_WAYS];
    int64_t sequence, position; int head, of; /* the row whose blocks are shown, and who has it */
    struct block_weight *blocks;           /* [members], in the order in which they come */
    double lse;                            /* merged */
    int64_t block_rows;                    /* of the largest block */
    double hop_bytes;                      /* of one hop of keys, in the activations' format */
    struct arena *arena;
};
/* Caller owns (ring_lesson_free). Joint rows and sinks are left out of it. */
struct ring_lesson *ring_lesson_new(const struct run_config *config, const struct attention_inputs_data *inputs);
void ring_lesson_free(struct ring_lesson *lesson); /* accepts NULL */

#endif
