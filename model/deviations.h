/* deviations: what factor, decision and tensor sites do wrong, where a run arms them. */
#ifndef MODEL_DEVIATIONS_H
#define MODEL_DEVIATIONS_H

#include <stddef.h>
#include "model/sites.h"
#include "sim/error.h"
#include "sim/tensor.h"

/* The run's own numbers, by the letters that a factor may use. */
struct factor_numbers {
    double M, D, P, C, T, E;       /* micro-batches; data ranks, which hold different tokens (config.h); pipeline, context, tensor, expert ranks */
    double A;                      /* what the gradient reduction divides by: D (avg) or 1 (sum) */
    double N, N_all, N_unshifted;  /* of the step, all data ranks: valid targets, positions, tokens that are not padding */
    double n, n_rank, n_rank_unshifted; /* valid targets of this micro-batch; of this data rank's whole step, also unshifted */
    double D_shard, D_replicate;   /* factors of D, beside C */
};

/* An expression: numbers and letters above, * and /, parentheses; "1/M", "N/(n*M*D)", "2". */
bool factor_parse(const char *text, const struct factor_numbers *numbers, double *ret_value, struct error *error);

/* The healthy value in, what the site lets through out. plan may be NULL. */
double factor_site(struct site_plan *plan, const struct site *site, struct where where, double value,
                   const struct factor_numbers *numbers);
/* The same where what is multiplied is added to an accumulator: of_accumulated: at every step all that was accumulated
 * so far is multiplied, not what is about to be added. In a healthy run never. */
struct factor_use { double value; bool of_accumulated; };
struct factor_use factor_use_site(struct site_plan *plan, const struct site *site, struct where where, double value,
                                  const struct factor_numbers *numbers);
/* early: what the condition would be one index earlier, for off-by-one. */
bool decision_site(struct site_plan *plan, const struct site *site, struct where where, bool value, bool early);
/* The same where the condition asks for a mode first; always: what it would be without asking. */
bool mode_site(struct site_plan *plan, const struct site *site, struct where where, bool value, bool always);
/* How several results become one. */
enum merging_way { MERGE_DUE, MERGE_KEEP_FIRST, MERGE_KEEP_LAST, MERGE_AVERAGE, MERGE_SUM };
enum merging_way merge_site(struct site_plan *plan, const struct site *site, struct where where);
/* Transfers: does this one change places with the next in the list of actions? In a healthy run never. */
bool order_site(struct site_plan *plan, const struct site *site, struct where where);
/* Which row stands in row's place: first is data rank 0's row of the same offset, count how many there are. */
int64_t index_site(struct site_plan *plan, const struct site *site, struct where where, int64_t row, int64_t row_of_rank_0, int64_t count);
/* Memory: which of `whole` elements are used, from .. from + count - 1; is what was there kept? */
struct memory_range { int64_t from, count; };
struct memory_range memory_range_site(struct site_plan *plan, const struct site *site, struct where where, int64_t whole);
bool memory_site_keeps(struct site_plan *plan, const struct site *site, struct where where);
/* In place. */
void tensor_site(struct site_plan *plan, const struct site *site, struct where where, struct tensor values);
/* The same for values [d0, d1, width] whose axes may be mistaken; backward: for their gradient, which goes back to where
 * each row came from. */
void tensor_site_axes(struct site_plan *plan, const struct site *site, struct where where, struct tensor values, bool backward);

#endif
