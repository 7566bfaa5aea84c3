/* sequence_sums: with sequence parallelism, the sum over tp of the gradients of parameters that saw a slice
 * (model/sequence_grads.c): what is due of it, and what it really was, by the facts that each rank notes. */
#ifndef SCENARIOS_SEQUENCE_SUMS_H
#define SCENARIOS_SEQUENCE_SUMS_H

#include "scenarios/facts.h"

/* Elements that this rank owns, in this step, of the unit's trained parameters that saw a slice. */
int64_t sequence_sums_elements(const struct record *record, const struct rank_record *rank, int step, int unit);
/* Is what a rank got at its i-th sum over tp what all gave? Sketches are linear; a slice's has zeros for the rest. Not held where
 * a neighbour's i-th sum is another, or what went in is not finite. */
bool tensor_sum_is_wrong(const struct record *record, const struct rank_record *rank, int i);
/* What became of the unit's sum on this rank: the place that was not as due (tp.tag, tp.adapter_placement, moe.router_grad, sp.grad, sp.grad_divisor, sp.grad_reduce); NULL: none. */
const struct site *sequence_sums_other(const struct record *record, const struct rank_record *rank, int step, int unit);
/* What the sum was divided by; 1 where none was made. */
double sequence_sums_divisor(const struct rank_record *rank, int step, int unit);

#endif
