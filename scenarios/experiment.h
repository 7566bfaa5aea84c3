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

/* experiment_attention.c: the workload `attention`, from its runs to the verdict; fills the result. False: an error, or stopped. */
struct check_selection;
bool experiment_attention(struct result *result, const struct experiment_options *options, const struct check_selection *selection, struct error *error);
/* experiment_denoise.c: the same for the workload `denoise`. */
bool experiment_denoise(struct result *result, const struct experiment_options *options, const struct check_selection *selection, struct error *error);
void experiment_attention_free(struct context_result *context);

/* experiment.c, shared: the verdict of the checks; one CPU path below this one (NULL: there is none). */
enum verdict experiment_verdict(const struct result *result);
const char *experiment_path_below(const char *path);

/* exploded.c: the first step in which both runs' numbers are not finite (-1: none), and records without what
 * comes from that step on. */
int exploded_step(const struct record *parallel, const struct record *standalone);
void exploded_cut(struct record *record, int step);

#endif
