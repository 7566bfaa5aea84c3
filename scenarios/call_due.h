/* call_due: which call a site of the training program is to make. */
#ifndef SCENARIOS_CALL_DUE_H
#define SCENARIOS_CALL_DUE_H

#include "model/record.h"

struct call_due { const struct site *site; const char *op, *reduce /* NULL: none */, *group, *also /* of experts that are units of their own; NULL: none */; };
/* False: any (transfers, broadcasts). */
bool call_due(const struct run_config *config, const struct site *site, struct call_due *ret);
bool call_group_is_due(const struct call_record *call, const struct call_due *due);
bool call_is_due(const struct call_record *call, const struct call_due *due);

#endif
