/* initial_values: did every rank begin with the values that it must? */
#ifndef SCENARIOS_INITIAL_VALUES_H
#define SCENARIOS_INITIAL_VALUES_H

#include "scenarios/check.h"

/* A finding for each parameter of each rank that begins otherwise than the standalone run; how many. */
int initial_values_check(const struct evidence *e, struct check_output *output);

#endif
