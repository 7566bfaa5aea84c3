/* overrides: --set PATH=VALUE, merged into the scenario's JSON tree before anything of it is judged. */
#ifndef SCENARIOS_OVERRIDES_H
#define SCENARIOS_OVERRIDES_H

#include "scenarios/reader.h"

/* In order; notes each in the reader, so that errors can name it. */
bool overrides_merge(struct reader *reader, int count, const struct override *overrides);
/* Frees what merging noted in the reader. */
void overrides_done(struct reader *reader);

/* The text as JSON, else as a string; NULL where it is neither (not UTF-8, control characters). Caller owns. */
cJSON *overrides_value(const char *text);
/* "precision": "fp64" becomes an object with every key; what is no format stays, for validation to find. */
void overrides_expand_precision(cJSON *root);

#endif
