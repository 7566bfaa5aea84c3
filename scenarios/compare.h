/* compare: the parallel run beside the standalone one: everything that has a counterpart, as numbers.
 *
 * a is the parallel run's, b the standalone's; error = ||a - b|| / max(||b||, terms) in the Frobenius norm.
 *   loss      sum of backward_loss over micro-batches, over data ranks the mean (reduce_op avg) or the sum
 *   gradient  raw and reduced, before clipping; a parameter at a time, put together from its shards (replica 0)
 *             by canonical name and row range; a row that no shard has is NaN
 *   param     after the update; step -1: before the first
 *   forward   a unit's output for one sequence, from sketches: ||a - b||^2 is estimated by the mean of four squared
 *             differences of random projections; the head's output is its token losses, compared in full
 *   backward  the gradient of a unit's input for one sequence, each side divided by the weight that its own loss gave
 *             the tokens of that sequence: so a wrong loss scale is not a wrong backward
 * Sequences that a rank did not draw as due, and weights that differ within one sequence, have no counterpart.
 *
 * Beside the error: ratio = <a,b> / <b,b> and residual = ||a - ratio b|| / ||b||, which tell a factor from noise.
 * Verdict by the ladder (ladder.h); terms_count, its K: tokens of the step, or the length of the rows that
 * were added so far, times (step + 1)^2, since every update hands its rounding on. An AdamW update divides
 * a gradient by its own size, so a parameter's limit, on either rung, gets an allowance: what the differences of
 * the raw gradients that the same two runs show can do to it, lr * ||min(2, 4 |a-b| / (|b| + eps))|| a step, added
 * up. (A key bias without RoPE has a gradient that is zero in exact arithmetic: its updates are noise on any rung.) Where the standalone's value is 0 throughout,
 * the allowance is what its error is relative to. */
#ifndef SCENARIOS_COMPARE_H
#define SCENARIOS_COMPARE_H

#include "scenarios/facts.h"

struct difference {
    bool known;               /* both runs have it */
    int rank;                 /* the parallel rank that holds it, or the worst of several; -1: none in particular */
    int ranks_count; const int *ranks; /* gradient, param: all whose rows differ beyond the screening limit */
    double error, error_other;         /* at the working precision; at the other rung (NAN: not run) */
    double ratio, residual;
    double terms_count, allowance;
    bool above_screen;        /* the working precision alone cannot clear it */
    bool wrong;               /* the ladder's verdict; without another rung: above_screen */
    double limit;             /* what was compared with (of error, or of the fp64 error) */
    double size;                             /* of what the error is relative to */
};

struct comparison_step {
    double loss_parallel, loss_logged, loss_standalone;
    double norm_parallel, norm_standalone;
    double max_gradient_error, max_param_error;
};

struct comparison {
    const struct record *parallel, *standalone;
    bool has_other;
    int steps, units, sequences, params;
    struct comparison_step *step;            /* [steps] */
    struct difference *loss, *norm;          /* [steps] */
    struct difference *forward, *backward;   /* [steps][units][sequences] */
    struct difference *gradient;             /* [steps][params] */
    struct difference *param;                /* [1 + steps][params]; row 0: initial */
    struct sketch_table sketches;            /* of the parallel run */
    struct arena *arena;
};

/* Both runs finished. Caller owns (comparison_free). The records must outlive it. */
struct comparison *comparison_new(const struct record *parallel, const struct record *standalone);
void comparison_free(struct comparison *comparison); /* accepts NULL */
/* Is anything above its screening limit, so that the other rung must decide? */
bool comparison_needs_other(const struct comparison *comparison);
/* The same pair of runs at the other rung: verdicts are then the ladder's. */
void comparison_add_other(struct comparison *comparison, const struct record *parallel,
                          const struct record *standalone);

/* NULL where out of range or not known. */
const struct difference *comparison_forward(const struct comparison *c, int step, int unit, int sequence);
const struct difference *comparison_backward(const struct comparison *c, int step, int unit, int sequence);
const struct difference *comparison_gradient(const struct comparison *c, int step, int param);
const struct difference *comparison_param(const struct comparison *c, int step, int param); /* step -1: initial */
/* Sum over micro-batches of the scalar that backward was called on, over data ranks as the reduction combines. */
double comparison_total_loss(const struct record *record, int step);
/* No parameter of this unit (the head: with the tied embedding) is wrong after `step`. */
bool comparison_unit_params_agree(const struct comparison *c, int step, int unit);
/* error of that, the largest. */
double comparison_unit_params_error(const struct comparison *c, int step, int unit);

/* ---- parts of it, by file ---- */
void compare_tensors(struct comparison *comparison);     /* compare_tensors.c */
void compare_activations(struct comparison *comparison); /* compare_activations.c */
/* Was the step's update left out for a gradient that was not finite? Its gradients are then not compared. */
bool comparison_left_out(const struct record *record, int step);
/* The larger of two; a NaN stays. */
double largest_of(double a, double b);
void difference_set(struct comparison *c, struct difference *d, double error, double terms_count, double allowance);

#endif
