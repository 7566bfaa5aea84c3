/* loss_convention: how a training system turns the summed losses of micro-batches into the weights of their tokens.
 *
 * Data rank d's micro-batch m sums the losses of its n valid tokens to S. Backward is called on S * seed,
 *     seed = compensation * scale / denominator,
 * the gradients are reduced over the D data ranks and divided by A (D where the reduction averages, else 1), and what
 * comes out is multiplied by grad_scale. A system that expects the sum of the data ranks' gradients is given
 * compensation = A, one that expects their mean A/D: so which reduction is used never changes the result. A token weighs
 *     weight = seed / A * grad_scale,
 * and the loss that is printed is the sum over all micro-batches of S * logged.
 *
 * With context parallelism the cp ranks that share sequences are data ranks too: D counts dp_replicate x dp_shard x cp, n the
 * valid tokens that a cp rank has of the micro-batch (Megatron-LM and nanotron average over their dp x cp group alike).
 *
 * Expressions are in the letters of struct factor_numbers. M and D are those of the cut: of the layout whose weights
 * are applied, which for a standalone run is the parallel one's. Counts enter as max(count, 1), as Megatron-LM has it:
 * a micro-batch without valid tokens has a weight that nothing carries.
 * Sources: each convention's own file. */
#ifndef MODEL_LOSS_CONVENTION_H
#define MODEL_LOSS_CONVENTION_H

#include "model/data.h"
#include "model/deviations.h"
#include "model/record.h"

enum loss_combine { LOSS_COMBINE_SUM, LOSS_COMBINE_MEAN }; /* what the system expects of the data reduction */

struct loss_convention {
    const char *name, *system, *what, *source;
    const char *denominator;         /* what a micro-batch's summed loss is divided by: site loss.denominator */
    const char *scale;               /* the factor beside it: site pp.loss.scale */
    enum loss_combine combine;       /* site dp.loss.scale carries what makes up for the reduction that is used */
    const char *grad_scale;          /* after the last reduction: site pp.grad_scale; the same for all micro-batches */
    bool counts_at_end;              /* grad_scale needs N on the ranks of all stages */
    const char *weight;              /* the product of all: the weight due of a token */
    const char *logged;              /* what S is multiplied by in the printed loss */
    bool logs_counts;                /* the printed loss is made from S and counts of its own, not from the divided loss */
    enum format logged_format;       /* that the printed loss travels in from the last stage to the others */
};

int loss_convention_count(void);
const struct loss_convention *loss_convention_at(int i); /* NULL: no more */
const struct loss_convention *loss_convention_of(const struct run_config *config);
/* Do its loss or its print need N, so that the last stage's ranks add up their counts before the first forward? */
bool loss_convention_counts(const struct loss_convention *convention);
/* Does it print what it optimizes, for any counts? */
bool loss_convention_logs_optimized(const struct loss_convention *convention);

/* An expression of a convention with these numbers, counts below 1 taken as 1. */
double loss_value(const char *expression, const struct factor_numbers *numbers);
/* A (sum) or A/D (mean). */
double loss_compensation(const struct loss_convention *convention, const struct factor_numbers *numbers);
/* The number that multiplies a token's gradient in backward: compensation * scale / denominator. */
double loss_seed(const struct loss_convention *convention, const struct factor_numbers *numbers);

/* ---- the cut ---- */

/* The cut whose weights a run applies: config's own, else its layout's. */
struct loss_cut loss_cut_of(const struct run_config *config);
static inline int loss_cut_cp(const struct loss_cut *cut) { return cut->cp > 1 ? cut->cp : 1; }
/* Which of the cut's micro-batches holds sequence i of a step: d * M + micro-batch, d among the data ranks / cp that read different sequences. */
int loss_cut_batch(const struct run_config *config, int64_t sequence);
/* Which of its cells holds what `member` of cp has of the sequence: data rank * M + micro-batch. */
int loss_cut_cell_of(const struct run_config *config, int64_t sequence, int member);

/* ---- what is due, from the data alone ---- */

/* record->cells and members, for all steps. */
void loss_fill_cells(struct record *record, const struct data *data);
/* One micro-batch of the cut; A is the run's own. */
struct factor_numbers loss_numbers_due(const struct record *record, int step, int cell);
/* The weight due of each of its tokens. */
double loss_weight_due(const struct record *record, int step, int data_rank, int microbatch);
/* What the gradient of one micro-batch's auxiliary losses is multiplied by, of all cp members' tokens (batch: loss_cut_batch): as if their value were its mean loss, over
 * its n valid tokens where the convention divides by n, else over its tokens that are not padding (Megatron-LM's
 * per-token loss). Beside the loss scale. */
double loss_auxiliary_seed(const struct record *record, int step, int batch);
double loss_auxiliary_tokens(const struct record *record, int step, int batch); /* those tokens, 1 at least of each member */

#endif
