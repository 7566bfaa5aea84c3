/* dispatch_calls: which calls a layer with experts on several ranks makes, by the layout alone. See dispatch_calls.c. */
#ifndef SCENARIOS_DISPATCH_CALLS_H
#define SCENARIOS_DISPATCH_CALLS_H

#include "scenarios/call_due.h"

/* Of one rank's whole run at a site; -1: it is none of the dispatch's. */
int64_t dispatch_calls_due(const struct record *record, const struct rank_record *rank, const struct site *site);
bool dispatch_call_due(const struct run_config *config, const struct site *site, struct call_due *ret);
/* How many of a micro-batch's tokens member `me` of an expert-parallel group sends the rows of. */
int64_t dispatch_tokens_due(const struct layout *layout, int64_t tokens, int me);

#endif
