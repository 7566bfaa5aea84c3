/* unit_values: what a unit's parameters or reduced gradients are as a whole, put together from the shards of the
 * ranks that one rank exchanges with, as sketches. For holding a gathered unit against its shards, and a
 * reduced gradient against what went into its reduction. */
#ifndef SCENARIOS_UNIT_VALUES_H
#define SCENARIOS_UNIT_VALUES_H

#include "scenarios/facts.h"
#include "scenarios/tensor_groups.h"

struct unit_values { const struct record *record; const struct ops *ops; struct tensor_groups groups; };
struct unit_values unit_values_new(const struct record *record);
void unit_values_free(struct unit_values *values);

/* version_digest of the unit's parameters after `step` (-1: initial), as the shards of this rank's group hold them.
 * false where the record does not have all of them. */
bool unit_values_digest(const struct unit_values *values, int rank, int step, int unit, uint64_t *ret_digest);
/* vector_sketch of each of its parameters' reduced gradients in `step`, added up. */
bool unit_values_gradient(const struct unit_values *values, int rank, int step, int unit, double ret_sketch[5]);
/* How far a rank's reduced gradient is from the sum of what its members put into the reduction over the divisor due,
 * relative to the norms added (sketches are linear); 0 where it can't be said. Both copies' where a tied
 * embedding has two. */
double unit_values_sum_error(const struct unit_values *values, int rank, int step, int unit);
double unit_values_sum_limit(const struct record *record);

#endif
