/* reduction_sums: did a reduction of gradients give the sum of what its members put in? By the sketches that each
 * rank notes of its calls, which are linear: nothing of what went before or comes after enters. */
#ifndef SCENARIOS_REDUCTION_SUMS_H
#define SCENARIOS_REDUCTION_SUMS_H

#include "scenarios/facts.h"

/* Of this call of this rank; right where a member's is not noted, or what went in is not finite. */
bool reduction_sum_is_wrong(const struct record *record, const struct rank_record *rank, const struct reduction_fact *fact);
/* Any call at the site in the step, on any rank. */
bool reduction_sums_any_wrong(const struct record *record, const struct site *site, int step);
/* The second reduction (hsdp.replicate_reduce, tied.grad_reduce) of this unit on this rank whose sum is wrong, the first
 * there is; where its numbers are zeros and tell nothing, that of any other rank in the step, if all first ones are right.
 * NULL: none. */
const struct site *reduction_sums_second(const struct record *record, const struct rank_record *rank, int step, int unit);

#endif
