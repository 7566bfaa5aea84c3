/* result: everything one experiment found out, as data; rendered afterwards (tools/). */
#ifndef SCENARIOS_RESULT_H
#define SCENARIOS_RESULT_H

#include "model/record.h"
#include "model/train.h"
#include "scenarios/scenario.h"

/* Where a finding is. -1 / NULL: does not depend on it. */
struct place { int rank, step, microbatch, layer, unit; const char *param; };

/* One thing that is not as it must be, by one check. The site is where, by dataflow, inputs still agreed and
 * the output did not: the check's own suspicion. */
struct finding {
    const char *check;              /* id */
    const struct site *site;        /* NULL: the check cannot say (oracle on a whole loss, say) */
    struct place place;
    double expected, got;           /* NAN where it is not a number */
    char ratio[48];                 /* got/expected as symbols where it is one: "1/M", "M", "N/N_all"; "" else */
    double ratio_value;             /* NAN if none */
    char pattern[48];               /* how its numbers look, for ranking candidates: a word of diagnosis.h; "" else */
    char text[640];                 /* one sentence */
};

enum check_status { CHECK_PASS, CHECK_FAIL, CHECK_SKIP };
struct check_result {
    const char *id; enum check_status status;
    double value, limit;            /* the largest measured value and its limit; NAN where not numeric */
    char why[640];                  /* failing: the first finding's sentence; skipped: the reason */
    struct place place;             /* failing: the first */
    int findings;                   /* how many */
};

struct step_result {
    int step; double parallel, logged, standalone, rel_err;
    double norm_parallel, norm_standalone, norm_rel_err;
    int64_t valid_tokens; double max_grad_rel_err, max_param_rel_err;
    double auxiliary_parallel, auxiliary_standalone; /* facts_auxiliary; in no loss */
};

struct evidence_item { char tensor[96]; double inputs_agree_to, differs_by; char ratio[48]; };
struct candidate { const char *fault; double score; };
enum { EVIDENCE_MAX = 8, CANDIDATES_MAX = 5, SUMMARY_MAX = 1024 };
struct diagnosis {
    char component[64]; const char *site; /* name, NULL */
    int ranks_count; int ranks[EXPECT_RANKS_MAX];
    struct place place;             /* step, microbatch, layer: the first place; -1 where it does not depend on it */
    char ratio[48]; double ratio_value;
    char summary[SUMMARY_MAX];      /* one sentence a person understands */
    char next[SUMMARY_MAX];         /* what to look at next */
    int evidence_count; struct evidence_item evidence[EVIDENCE_MAX];
    int candidates_count; struct candidate candidates[CANDIDATES_MAX];
};

enum fault_outcome { FAULT_ACTIVE, FAULT_MASKED, FAULT_NOT_HIT };
struct fault_result { const char *fault, *site; uint64_t hits; enum fault_outcome outcome; char why[320]; };

enum { WARNINGS_MAX = 8, WARNING_TEXT = 512 };

struct experiment_options {
    struct train_options train;
    const char *checks;             /* "default", "deep", "id,id", "-id" */
    bool watch;                     /* set by experiment_run: deep, or faults to look for; see train_options */
};

/* Workload attention: what a report shows beside checks and diagnosis. */
struct context_result {
    struct attention_inputs_data *inputs;
    struct context_comparison *comparison, *fine;
    struct context_variations *variations;
    struct record *single;                /* on one rank, at the scenario's own precision */
};

/* Workload denoise: the latents of ring and one rank after each iteration. */
struct denoise_result { int iterations; double *rel, *max_abs, *rel_fine /* in the other rung of the ladder; NAN: not run */; };

struct result {
    const struct scenario *scenario;      /* borrowed */
    struct record *parallel, *standalone; /* owned */
    struct record *parallel_other, *standalone_other; /* the other rung of the precision ladder; NULL if not run; owned */
    int exploded_step;                    /* both runs' numbers are not finite from this step on, which is left out; -1: none */
    enum verdict verdict; bool as_expected; char expected_why[256]; /* why it is not as expected; "" else */
    int steps_count; struct step_result *steps;
    int checks_count; struct check_result *checks;
    int findings_count; struct finding *findings;
    int warnings_count; char warnings[WARNINGS_MAX][WARNING_TEXT]; /* worth knowing, and no fault */
    bool has_diagnosis; struct diagnosis diagnosis;
    int faults_count; struct fault_result faults[FAULTS_MAX];
    struct context_result context;        /* workload attention; owned */
    struct denoise_result denoise;        /* workload denoise; iterations 0: not there */
    double wall_s;
    struct arena *arena;
};

/* Runs both, compares, checks, diagnoses. NULL and an error for the environment's or hpsim's own reasons.
 * Caller owns (result_free). Interrupted: NULL, error kind ERROR_NONE. */
struct result *experiment_run(const struct scenario *scenario, const struct experiment_options *options, struct error *error);
void result_free(struct result *result); /* accepts NULL */

#endif
