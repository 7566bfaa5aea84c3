/* balance: what the routers of a rank keep from step to step, and what a micro-batch gives them. See balance.c. */
#ifndef MODEL_BALANCE_H
#define MODEL_BALANCE_H

#include "model/program.h"

/* A layer's selection bias and the counts of its step; NULL where it has none. */
struct balance { double *bias, *counts; };

void balance_begin(struct program *p);                             /* of the run */
/* For a layer's forward, or its backward; NULL: no experts there. What a forward did is noted by the second call. */
const struct router_run *balance_enter(struct program *p, struct microbatch *mb, const struct unit *unit, int microbatch, bool backward);
/* What a recomputation's choices are counted in: due is NULL, for its forward's were. */
double *balance_counted_again(struct program *p, const struct unit *unit, struct where where);
void balance_leave(struct program *p, const struct unit *unit);
void balance_update(struct program *p);                            /* once a step, after the last gradient reduction */
/* Does the optimizer pass a parameter over since its expert had no row on this rank in the step? Due: never. */
bool balance_passes_over(struct program *p, const struct unit *unit, const char *param, struct where where);

#endif
