/* oracle_inputs: did what a differing value was computed from agree? Then it went wrong right there. */
#ifndef SCENARIOS_ORACLE_INPUTS_H
#define SCENARIOS_ORACLE_INPUTS_H

#include "scenarios/compare.h"
#include "scenarios/unit_values.h"

/* A unit's output for one sequence: its input as it arrived, its parameters, their versions. */
bool oracle_forward_inputs_agree(const struct comparison *c, int step, int unit, int sequence);
/* A unit's input gradient: its output gradient as it arrived, its input, its parameters, their versions. */
bool oracle_backward_inputs_agree(const struct comparison *c, int step, int unit, int sequence);
/* A parameter's reduced gradient: the unit's inputs and output gradients for all sequences, every weight, and
 * the reduction's sum. values: of the parallel run. */
bool oracle_gradient_inputs_agree(const struct comparison *c, const struct unit_values *values, int step, int param);
/* How far the inputs of a unit's forward or backward agree: the largest error among them. */
double oracle_inputs_error(const struct comparison *c, int step, int unit, int sequence, bool backward);

#endif
