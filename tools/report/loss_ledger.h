/* loss_ledger: the way of the loss from each micro-batch's sum to the weight that its tokens have in the
 * gradient, as data for `hpsim explain loss`.
 *
 * Data rank d's micro-batch m sums S over its n valid tokens. Its backward is seeded with
 *     seed = 1/denominator * scale * compensation
 * the reduction divides by `divisor` (due: A = D where it averages, else 1), what comes out is multiplied by grad_scale,
 * and so a token weighs seed / divisor * grad_scale. What is due of each is train.loss_normalization's
 * (model/loss_convention.h); token_mean: 1/N with N all valid tokens of the step. */
#ifndef TOOLS_REPORT_LOSS_LEDGER_H
#define TOOLS_REPORT_LOSS_LEDGER_H

#include "scenarios/result.h"

/* One factor of a row: what was used and what is due; symbol: the value in the run's letters, "" if none fits. */
struct loss_factor_entry { double value, due; bool wrong; char symbol[48]; };
enum loss_factor_kind { LOSS_DENOMINATOR, LOSS_SCALE, LOSS_COMPENSATION, LOSS_DIVISOR, LOSS_GRAD_SCALE, LOSS_FACTOR_KINDS };
extern const char *const loss_factor_names[LOSS_FACTOR_KINDS]; /* the sites' names */

struct loss_row {
    int data_rank, microbatch, rank;
    int64_t valid, positions, weighted;    /* weighted: tokens that have a weight at all */
    double sum, mean;                      /* S, S/n; NAN where n = 0 */
    struct loss_factor_entry factor[LOSS_FACTOR_KINDS];
    double weight, due, ratio;             /* by the factors; as due; weight/due */
    char ratio_symbol[48];
    /* Over all gradients of the step, by the probes that went with the numbers; NAN: none was recorded. */
    double measured_min, measured_max; int unit_min, unit_max, rank_min, rank_max;
    bool measured_wrong, wrong;            /* measured differs from weight; anything is not as due */
};

struct loss_step {
    int step, rows_count; struct loss_row *rows;
    int64_t valid, positions;              /* N as due; all positions of the rows */
    double sum, weight_sum, weight_sum_due; /* S over all; sum over tokens of their weight, of the weight due (1 for a mean) */
    double token_mean, mean_of_means, mean_of_rank_means;
    double parallel, logged, standalone;   /* NAN where the run did not get so far */
    int shortest, longest;                 /* rows by n; -1: none */
    double stale_weight; int stale_unit, stale_rank; /* the largest weight left from the step before; 0: none */
};
struct loss_ledger { int steps_count; struct loss_step *steps; int data_ranks, microbatches; struct arena *arena; };

struct loss_ledger loss_ledger_new(const struct result *result);
void loss_ledger_done(struct loss_ledger *ledger);

/* explain_loss.c, explain_loss_json.c; steps_all: every step, else the first. json: malloc'd. */
struct terminal;
void explain_loss_text(const struct result *result, bool steps_all, const struct terminal *terminal);
char *explain_loss_json(const struct result *result, bool steps_all);

#endif
