/* choices: see choices.h. */
#include "model/choices.h"

#include "model/vectors.h"

static void note(struct rank_record *record, const struct site *site, struct where where, int unit, struct memory_range used, int64_t whole)
{
    struct choice_fact fact = {site, where.step, where.microbatch, unit, used.from, used.count, whole};
    record_push(record, choices, fact);
}

bool choice_site(struct site_plan *plan, struct rank_record *record, const struct site *site, struct where where, int unit, bool due)
{
    bool taken = decision_site(plan, site, where, due, due);
    note(record, site, where, unit, (struct memory_range){0, taken}, due);
    return taken;
}

struct memory_range memory_site(struct site_plan *plan, struct rank_record *record, const struct site *site, struct where where,
                                int unit, int64_t whole)
{
    struct memory_range used = memory_range_site(plan, site, where, whole);
    note(record, site, where, unit, used, whole);
    return used;
}

bool memory_is_zeroed(struct site_plan *plan, const struct site *site, struct where where)
{
    return !plan || !memory_site_keeps(plan, site, where);
}
