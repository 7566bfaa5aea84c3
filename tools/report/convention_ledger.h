/* convention_ledger: what every loss convention would make of one step: the tokens' weights in each micro-batch of
 * this layout, the loss that is optimized and the one that is printed, on the losses that the parallel run had. */
#ifndef TOOLS_REPORT_CONVENTION_LEDGER_H
#define TOOLS_REPORT_CONVENTION_LEDGER_H

#include "model/loss_convention.h"
#include "scenarios/result.h"

struct convention_entry {
    const struct loss_convention *convention;
    double *weight;                /* [cells] of a token of data rank * M + micro-batch */
    double mean_low, mean_high;    /* weight over 1/N, over cells with valid tokens */
    double own_low, own_high;      /* weight over that of the scenario's own convention: what its gradients are of these */
    double loss, logged;           /* sum of S * weight, of S * the factor of the print */
    bool logs_optimized;           /* to 1e-9 on these numbers */
};

struct convention_ledger {
    int step, data_ranks, microbatches, cells, count, own; /* own: the scenario's convention */
    struct factor_numbers *numbers;/* [cells] */
    double *sums;                  /* [cells] S; NAN where the run did not get there */
    double token_mean;
    struct convention_entry *entries; /* [count] in the order of the table */
    struct arena *arena;
};

struct convention_ledger convention_ledger_new(const struct result *result, int step);
void convention_ledger_done(struct convention_ledger *ledger);
/* The cell with the fewest valid tokens, but one at least; 0 where there is none. */
int convention_ledger_shortest(const struct convention_ledger *ledger);

/* explain_conventions.c, explain_gradients.c */
struct terminal;
struct cJSON;
void explain_conventions_text(const struct result *result, int step, const struct terminal *terminal);
void explain_conventions_json(struct cJSON *step_object, const struct result *result, int step);
void explain_gradients_text(const struct result *result, bool steps_all, const struct terminal *terminal);
char *explain_gradients_json(const struct result *result, bool steps_all); /* malloc'd */

#endif
