/* conservation_dispatch: see conservation_dispatch.c. A part of the check `conservation`. */
#ifndef SCENARIOS_CONSERVATION_DISPATCH_H
#define SCENARIOS_CONSERVATION_DISPATCH_H

#include "scenarios/check.h"

void conservation_dispatch(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact);
/* The fact of the rank that computes a row of the routing's, and which of its rows that is; NULL: it is not known. */
const struct routing_fact *dispatch_row_at(const struct evidence *e, const struct rank_record *rank, const struct routing_fact *fact, int64_t row, int64_t *ret_at);

/* Is what a token gets the sum, over tp (or, without tp, over the expert-parallel group), of what the ranks got of their experts for
 * that token: a sum of what is complete? Asked where it is not this rank's own. */
bool dispatch_is_summed_again(const struct evidence *e, const struct rank_record *rank, const struct routing_fact *fact, int64_t token);

#endif
