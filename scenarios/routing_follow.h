/* routing_follow: choices of experts in which two runs may differ without a mistake, and those in which they may not.
 *
 * A choice is a near tie where it hangs on rounding (model/layers/router_follow.c): there the reference takes over the
 * parallel run's. ROUTING_NEAR_TIE: how many roundings of the run's narrowest format a logit may have gathered on its way,
 * relative to the largest of its token. Measured where healthy runs chose otherwise: 0.5 with 2 layers and 2 steps, 2 with 4 layers, 5 steps,
 * tp 3 and pp 2 in bf16, 11 where gradients, their sums, softmax and logits are bf16 too and AdamW's rate is 0.01: what is
 * beyond the limit there is later steps' alone and left to the precision ladder, whose fp64 runs choose alike. */
#ifndef SCENARIOS_ROUTING_FOLLOW_H
#define SCENARIOS_ROUTING_FOLLOW_H

#include "model/train.h"

enum { ROUTING_NEAR_TIE = 8 };

/* What routers of a run chose for the tokens of every step, as far as it follows by the rule from scores, and these from
 * logits: nothing else is taken over. NULL: the model has no experts. Lives in the arena. */
struct routing_choices *routing_choices_of(const struct record *record, struct arena *arena);

/* Is every choice, and who has room, what the rule makes of the run's own scores, and these of its logits? */
bool routing_keeps_rules(const struct record *record);

/* Of the choices that both runs noted: those in which they differ, and those that the standalone run took over. */
struct routing_difference { int64_t tokens, differ, followed; int step, unit; /* the first that differs; -1 */ };
struct routing_difference routing_difference_of(const struct record *parallel, const struct record *standalone);

#endif
