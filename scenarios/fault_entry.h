/* fault_entry: one entry of "faults", or one --fault, against the catalogue and the registries. */
#ifndef SCENARIOS_FAULT_ENTRY_H
#define SCENARIOS_FAULT_ENTRY_H

#include "model/deviations.h"
#include "scenarios/reader.h"

/* path: where the entry stands, "faults[3]". */
bool fault_entry_read(struct reader *reader, const cJSON *item, const char *path, struct fault_entry *ret_entry);
/* text: NAME[@key=value,...] */
bool fault_entry_parse(struct reader *reader, const char *text, struct fault_entry *ret_entry);

/* What a deviation can be given beside its place, as bits. */
enum fault_parameter {
    PARAMETER_FACTOR = 1, PARAMETER_VALUE = 2, PARAMETER_GROUP = 4, PARAMETER_OP = 8, PARAMETER_FORMAT = 16,
    PARAMETER_INDEX = 32,
};
unsigned fault_parameters(const struct deviation *deviation);
/* "factor or value (2)", in brackets what holds where it is left out; "format, required"; "" where it takes none. */
enum { FAULT_ARGUMENT_TEXT = 96 };
const char *fault_argument_words(const struct deviation *deviation, char text[FAULT_ARGUMENT_TEXT]);
/* An entry as --fault takes it: "coll-wrong-root@step=1,rank=6+7,index=2". */
enum { FAULT_ENTRY_TEXT = 1024 };
const char *fault_entry_write(const struct fault_entry *entry, char text[FAULT_ENTRY_TEXT]);

/* A layout's own numbers; what only the data tells (N, N_all, N_unshifted, n, n_rank) is `of_data`. */
struct factor_numbers fault_numbers(const struct layout *layout, double of_data);

#endif
