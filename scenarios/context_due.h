/* context_due: which calls context parallelism makes, by the layout alone. */
#ifndef SCENARIOS_CONTEXT_DUE_H
#define SCENARIOS_CONTEXT_DUE_H

#include "scenarios/call_due.h"
#include "scenarios/check.h"

/* Of one forward and one backward of one attention; false: no site of it. */
bool context_calls_of(const struct layout *layout, const struct site *site, int64_t *ret_forward, int64_t *ret_backward);
/* Of the whole run, on this rank; -1: no site of it. */
int64_t context_calls_due(const struct record *record, const struct rank_record *rank, const struct site *site);
bool context_call_due(const struct run_config *config, const struct site *site, struct call_due *ret);
/* Where more or fewer follow from a decision on this rank, that decision's site; NULL: none. */
const struct site *context_calls_decision(const struct record *record, const struct rank_record *rank, const struct site *site);

/* Is it the softmax' scale, as a rank noted it, and not 1 / sqrt(head_dim)? */
bool context_is_other_scale(const struct record *record, const struct factor_fact *fact);
/* Of the decisions, factors and ranges of context parallelism that fell out other than due in a layer's attention, the first in the dataflow
 * (on the ranks that took part: as they noted it); NULL: none. ret_rank: who. */
const struct site *context_decision(const struct record *record, int step, int unit, int *ret_rank);

/* Is what was noted here the output of attention that is split over cp ranks? It stands where attention.mask is, and is behind much
 * more than the mask: which part of it, this place cannot tell. */
bool context_is_split_attention(const struct record *record, const struct site *noted);
/* From the variations as they are, of both runs: queries, keys and values of this sequence in this layer are equal to the bit, and the norm
 * of what the split attention makes of them is not the standalone run's, by more than rounding. ret_by: by how much, of its square. False
 * where it does not show in the norm, where tp splits heads too, or where nothing was noted. */
bool context_attention_differs_first(const struct evidence *e, int unit, int sequence, double *ret_by);

#endif
