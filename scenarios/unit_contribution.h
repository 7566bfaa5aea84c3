/* unit_contribution: what went into one unit's gradient on one rank in one step, station by station, as
 * multiplicities by (data rank, micro-batch) summed from the origin ledgers. */
#ifndef SCENARIOS_UNIT_CONTRIBUTION_H
#define SCENARIOS_UNIT_CONTRIBUTION_H

#include "scenarios/facts.h"

struct unit_contribution {
    const struct rank_record *rank;
    int step, unit;
    int *local;              /* [D * M] what all that share the unit put into reductions; of this step */
    int *unreduced;          /* [D * M] what this rank never put into one */
    int *reduced;            /* [D * M] what the optimizer is given; of this rank's own use of a tied embedding */
    int uses_reduced[2];     /* terms of this step by use: input, output */
    int local_earlier, reduced_earlier, earlier_step; /* terms of earlier steps on this rank */
    bool left_behind;        /* this rank had unreduced gradients at the end of the step before */
    bool has_reduced; const struct gradient_fact *fact; /* the REDUCED one */
};

/* false: this rank does not have the unit, or has not got there. Freed with unit_contribution_free. */
bool unit_contribution_read(const struct record *record, int rank, int step, int unit, struct unit_contribution *ret);
void unit_contribution_free(struct unit_contribution *u);
/* Did any backward of this unit happen in the step? */
bool unit_contribution_has_backward(const struct unit_contribution *u);
/* Were those earlier terms in the reduced gradient of their own step too, so that they are not late but again? */
bool unit_contribution_is_repeated(const struct record *record, const struct unit_contribution *u);
/* Did this rank take part in a reduction for each gradient that it meant to reduce? By the log of calls. */
bool unit_contribution_was_called(const struct record *record, const struct unit_contribution *u);
/* How often a micro-batch enters local gradients: 2 for a tied embedding on a single stage, times the ranks that read it. */
int unit_contribution_local_uses(const struct record *record, const struct unit_contribution *u);

/* Does a reduced gradient hold every (data rank, micro-batch) of its step once (a tied embedding in two copies: once a
 * use), each with the weight that its seed, the divisor due and the factor after the reduction give, by ledger and probe? */
bool unit_contribution_is_right(const struct record *record, const struct rank_record *rank,
                                const struct gradient_fact *fact);
/* The site of a factor that is always 1 and scaled the gradient between micro-batches or after its reduction: on any rank whose gradients are in this
 * one; NULL: none. */
const struct site *unit_contribution_was_accumulated(const struct record *record, const struct rank_record *rank,
                                                     int step, int unit);
/* Where a wrong factor after the reduction comes from: the count of tokens that this rank was given, or the factor. */
const struct site *unit_contribution_grad_scale(const struct record *record, const struct rank_record *rank, int step);
/* Which reduction it was that went wrong for this unit: a second one whose sum is not that of what went in; where the unit is a tied embedding in two copies, and another
 * unit's gradient on the same rank came out of its own as it must, tied.grad_reduce; else fsdp.reduce_grad. */
const struct site *unit_contribution_reduction(const struct record *record, const struct rank_record *rank, int step,
                                               int unit);

#endif
