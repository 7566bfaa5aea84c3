/* conservation_dispatch: see conservation_dispatch.c. A part of the check `conservation`. */
#ifndef SCENARIOS_CONSERVATION_DISPATCH_H
#define SCENARIOS_CONSERVATION_DISPATCH_H

#include "scenarios/check.h"

void conservation_dispatch(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact);

#endif
