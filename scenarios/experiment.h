/* experiment: parts of experiment_run (scenarios/result.h), by file. */
#ifndef SCENARIOS_EXPERIMENT_H
#define SCENARIOS_EXPERIMENT_H

#include "scenarios/result.h"

/* The plans that the result's two records ran with. */
struct experiment_plans { struct site_plan *parallel, *standalone; };

/* experiment_faults.c: fills result->faults. Needs the verdict. A fault that was hit and left the verdict
 * consistent takes one more run, without faults. False: an error, or stopped. */
bool experiment_faults(struct result *result, const struct experiment_plans *plans,
                       const struct experiment_options *options, struct error *error);
/* experiment_expect.c: as_expected and expected_why. Needs verdict, checks, diagnosis and faults. */
void experiment_expect(struct result *result);

/* exploded.c: the first step in which both runs' numbers are not finite (-1: none), and records without what
 * comes from that step on. */
int exploded_step(const struct record *parallel, const struct record *standalone);
void exploded_cut(struct record *record, int step);

#endif
