/* variations: one step of a run once more, with a thing changed whose effect is known beforehand.
 *
 *   as it is   the values inside its layers are noted (train_options.look), to be held against the others
 *   cut        the same sequences in micro-batches of another size: no sequence's forward may change
 *   edited     one token of one sequence is another: only positions that may see it may change
 * Of both runs, the parallel and the standalone one: a forward that depends on its neighbours in the batch is wrong
 * by itself, and no comparison of two runs that share it can tell. */
#ifndef SCENARIOS_VARIATIONS_H
#define SCENARIOS_VARIATIONS_H

#include "scenarios/result.h"

enum variation_kind { VARIATION_NONE, VARIATION_CUT, VARIATION_EDIT };
struct variation {
    enum variation_kind kind;
    bool standalone;
    int per_microbatch;          /* sequences of a micro-batch */
    struct token_edit edit;
    struct record *record;       /* owned */
};
enum { VARIATIONS_MAX = 16 };
struct variations { int count; struct variation items[VARIATIONS_MAX]; };

/* Does a position's forward give the same bits however the batch is cut? Not with OpenBLAS, whose bits depend on the shape
 * of a product, nor where a sum over three tp ranks and more begins at another rank for each part of its buffer: then the
 * variations run in fp64, whatever the scenario's formats are, and a difference is held against its rounding. */
bool variations_are_exact(const struct run_config *config, const char *gemm);

/* Makes them all. NULL: the environment's fault, or stopped (no error). Owner: variations_free. */
struct variations *variations_new(const struct scenario *scenario, const struct experiment_options *options, struct error *error);
void variations_free(struct variations *variations); /* accepts NULL */
/* The one as it is, of the same run as `of`. */
const struct variation *variations_base(const struct variations *variations, const struct variation *of);

/* ---- what they noted, in the order of the dataflow ---- */
struct rows_entry { const struct rows_fact *fact; int rank; };
struct rows_table { int count; struct rows_entry *entries; }; /* by sequence, unit, site, part, tp rank */
struct rows_table rows_table_new(const struct record *record);  /* free entries */
/* The entry of another table with the same key; fact NULL: none. */
struct rows_entry rows_table_find(const struct rows_table *table, const struct rows_fact *like);

#endif
