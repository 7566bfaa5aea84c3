/* describe: parts of a scenario and a result in words. */
#ifndef TOOLS_REPORT_DESCRIBE_H
#define TOOLS_REPORT_DESCRIBE_H

#include "scenarios/result.h"

enum { DESCRIBE_TEXT = 512 };

/* "8 ranks = pipeline 4 x FSDP 2, 1F1B, 8 micro-batches of 2 sequences, 434,688 parameters, fp32" */
const char *describe_layout(const struct run_config *config, char text[DESCRIBE_TEXT]);
/* "fp32", or what computes and what reduces where parts differ. */
const char *describe_precision(const struct precision *precision, char text[DESCRIBE_TEXT]);
/* "rank 6, step 0, micro-batch 2"; "" where it depends on nothing. */
const char *describe_place(const struct place *place, char text[DESCRIBE_TEXT]);
/* "diverged in pp.loss", "consistent" */
const char *describe_expectation(const struct expectation *expect, char text[DESCRIBE_TEXT]);
/* "0, 1, 6-11" */
const char *describe_ranks(const int *ranks, int count, char text[DESCRIBE_TEXT]);

/* What was given with a fault: " at ranks 6, 7, step 1, with factor 1/D, once, in the standalone run"; "" for nothing. */
const char *describe_fault(const struct fault_entry *entry, char text[DESCRIBE_TEXT]);

#endif
