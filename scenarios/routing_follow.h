/* routing_follow: choices of experts in which two runs may differ without a mistake, and those in which they may not.
 *
 * A choice is a near tie where it hangs on rounding (model/layers/router_follow.c): there the reference takes over the
 * parallel run's. ROUTING_NEAR_TIE: how many roundings of the run's narrowest format a logit may have gathered on its way,
 * relative to the largest of its token. Measured over 200 seeds of tests/test_near_ties.c: see there. */
#ifndef SCENARIOS_ROUTING_FOLLOW_H
#define SCENARIOS_ROUTING_FOLLOW_H

#include "model/train.h"

enum { ROUTING_NEAR_TIE = 32 };

/* What routers of a run chose for the tokens of every step, as far as it follows by the rule from scores, and these from
 * logits: nothing else is taken over. NULL: the model has no experts. Lives in the arena. */
struct routing_choices *routing_choices_of(const struct record *record, struct arena *arena);

/* Of the choices that both runs noted: those in which they differ, and those that the standalone run took over. */
struct routing_difference { int64_t tokens, differ, followed; int step, unit; /* the first that differs; -1 */ };
struct routing_difference routing_difference_of(const struct record *parallel, const struct record *standalone);

#endif
