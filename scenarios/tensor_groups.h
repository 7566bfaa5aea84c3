/* tensor_groups: all captured tensors of a run in one order: step, gradients before parameters, parameter,
 * where it lives (unit), first element, rank. For checks that hold copies and shards against each other. */
#ifndef SCENARIOS_TENSOR_GROUPS_H
#define SCENARIOS_TENSOR_GROUPS_H

#include "model/record.h"

struct tensor_entry { const struct tensor_fact *fact; int rank; };
struct tensor_groups { int count; struct tensor_entry *entries; };
struct tensor_groups tensor_groups_new(const struct record *record); /* caller frees entries */
/* The first entry of this tensor; count where there is none. */
int tensor_groups_first(const struct tensor_groups *groups, int step, enum tensor_kind kind, int param, int unit);

#endif
