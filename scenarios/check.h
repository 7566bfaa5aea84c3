/* check: one property of a run, proved from the records. One file and one line (checks.def) each.
 *
 * A check reads the evidence and nothing else: never the list of faults. It reports findings, and its value
 * and limit. */
#ifndef SCENARIOS_CHECK_H
#define SCENARIOS_CHECK_H

#include "scenarios/result.h"

/* The parallel run made once more under other circumstances. */
struct repeat { const char *what; uint64_t digest[2]; };

/* Workload attention: what the checks of context parallelism read beside the records. */
struct context_comparison;
struct context_variations;
struct attention_inputs_data;
struct context_evidence {
    const struct attention_inputs_data *inputs;
    const struct context_comparison *comparison;   /* with the reference, context_compare.h; NULL in a deadlock */
    const struct context_comparison *fine;         /* of the parallel run in fp64; NULL: not run */
    const struct context_variations *variations;   /* context_variations.h; NULL: not made */
};

/* The two runs, and, where it was run, the same two at the other rung of the ladder. */
struct variations;
struct evidence {
    const struct run_config *config;               /* the scenario's, parallel layout */
    const struct record *parallel, *standalone;
    const struct record *parallel_other, *standalone_other; /* NULL: not run */
    const struct comparison *comparison;           /* compare.h; NULL in a deadlock */
    int repeats_count; const struct repeat *repeats; /* 0: made once only */
    const struct variations *variations;           /* variations.h; NULL: not made */
    const struct context_evidence *context;        /* workload attention; NULL else */
    const struct denoise_result *denoise;          /* workload denoise; NULL else */
};

/* The parallel run's record in fp64, where there is one: what is wrong shows there as it does at any rung, and rounding
 * does not hide it. Else the run's own. */
static inline const struct record *evidence_fine(const struct evidence *e)
{
    bool is_fine = e->parallel_other && precision_is(&e->parallel_other->config.precision, FORMAT_FP64);
    bool as_long = is_fine && e->parallel_other->config.train.steps == e->parallel->config.train.steps;
    return as_long && e->parallel_other->outcome == MACHINE_FINISHED ? e->parallel_other : e->parallel;
}

struct check_output;                               /* collects findings; see check_find */
void check_find(struct check_output *output, const struct finding *finding); /* copied; check's id is filled in */
void check_value(struct check_output *output, double value, double limit);   /* keeps the largest value/limit */
void check_skip(struct check_output *output, const char *why);
void check_warn(struct check_output *output, const char *text); /* one a check: worth knowing, and no fault */

struct check {
    const char *id;
    const char *proves;
    const char *tier;                              /* "default", "deep" */
    const char *measures;                          /* what its value is; NULL: a relative error */
    void (*run)(const struct evidence *evidence, struct check_output *output);
    unsigned workloads;                            /* CHECK_IN(workload) of those it reads; 0: training alone */
};
#define CHECK_IN(workload) (1u << (workload))
/* Why a check has nothing to look at in this workload; NULL: it has. */
const char *check_elsewhere(const struct check *check, enum workload workload, char text[160]);
int check_count(void);
const struct check *check_at(int i);
const struct check *check_find_by_id(const char *id);

#endif
