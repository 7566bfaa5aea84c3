/* choices: decisions that always fall out the same way, and ranges of memory that are always used whole, passed as
 * sites. What each really was is noted every time; what is
 * due is for the checks to know. */
#ifndef MODEL_CHOICES_H
#define MODEL_CHOICES_H

#include "model/deviations.h"
#include "model/record.h"

/* due in; what the site lets through out. */
bool choice_site(struct site_plan *plan, struct rank_record *record, const struct site *site, struct where where, int unit, bool due);

/* Elements from .. from + count - 1 of `whole` that are used. */
struct memory_range memory_site(struct site_plan *plan, struct rank_record *record, const struct site *site, struct where where,
                                int unit, int64_t whole);
/* Is the buffer zeroed before it is used anew? Noted by nobody: whoever adds to it looks. */
bool memory_is_zeroed(struct site_plan *plan, const struct site *site, struct where where);

#endif
