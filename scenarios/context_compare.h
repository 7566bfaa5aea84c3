/* context_compare: what every rank of the workload `attention` made, held against the reference in fp64 on the same rounded inputs.
 *
 *   e = ||x - ref||_F / ||ref||_F   of a rank's rows, and of each head of them; never an absolute tolerance, which passes for
 *   right what is small, nor a cosine, which hides one part in a hundred.
 *   Where terms cancel (a row that sees one key has dq = 0), ||ref|| is at least half the sum of their magnitudes, sum_j p (|dp| +
 *   |delta|) |k|: delta = do . out errs by as many u of the root of its terms' squares as out does, which has the same limit, and that part
 *   of the sum is about half of it. So with lse = log-sum-exp near 0: its logits' terms and log l (model/attention_reference.c).
 *   limits: fp64 1e-12; fp32 32 * 2^-24; bf16, fp16 0.8 u, and up to 1.5 u a finding of precision. lse is kept in storage,
 *   whatever the activations are. Where the scenario's own formats round more than the activations (a narrow softmax), or its
 *   logits are large, one rank alone errs by more than that: the limit is then 1.35 of what it errs by.
 *   Out and gradients have what large logits leave beside the terms (16 or more; in 16 bits that is nothing): whatever needs it is judged in fp64 too.
 *   A norm over few numbers n scatters: limits of a rank in 16 bits, or by one rank's own error, are 1 + 2 / sqrt(n) + 4 / n of these, 3 at the most, n what errs independently: numbers of
 *   out, half as many as rows of a gradient; rows count by what they weigh in the norm, (sum w)^2 / sum w^2.
 * Rows that all members have (attention.joint) count in gradients as the sum over the group. */
#ifndef SCENARIOS_CONTEXT_COMPARE_H
#define SCENARIOS_CONTEXT_COMPARE_H

#include "model/attention_run.h"

enum context_tensor { CONTEXT_OUT, CONTEXT_LSE, CONTEXT_DQ, CONTEXT_DK, CONTEXT_DV, CONTEXT_SINKS, CONTEXT_TENSORS };
extern const char *const context_tensor_names[CONTEXT_TENSORS];

enum { CONTEXT_RTOLS = 4 };
extern const double context_rtol[CONTEXT_RTOLS];   /* 0, 1e-3, 5e-3, 2.5e-2 */
struct context_error {
    bool known;                        /* false: the rank has no such rows, or the tensor was not made */
    double max_abs, rel, limit;
    double ref_max;                    /* largest magnitude of the reference: what a relative tolerance is relative to */
    double cosine;
    double excess[CONTEXT_RTOLS];                  /* largest |x - ref| - rtol |ref|, rtol of context_rtol: for tolerances as tests elsewhere give them */
    int worst_head; double worst_head_rel, worst_head_limit;
    int64_t worst_sequence, worst_position; double worst_row_rel; /* ||row - ref|| / (||ref|| / sqrt(rows)) */
    double single;                     /* rel of the same rows on one rank at the run's precision; NAN: not made */
    bool suspect;                      /* beyond the limits without room for few numbers (context_comparison_suspect) */
    bool wrong, imprecise;             /* beyond 1.5 u or not finite; between the limit and that */
};
struct context_comparison {
    int ranks, groups, members;
    struct context_error *items;       /* [ranks + groups + 1][CONTEXT_TENSORS]: ranks; joint rows, summed over each group; sinks, over all */
    double roundoff;                   /* u of the activations */
    struct arena *arena;
};
const struct context_error *context_error_of(const struct context_comparison *c, int rank, enum context_tensor tensor);
const struct context_error *context_error_joint(const struct context_comparison *c, int group, enum context_tensor tensor);
const struct context_error *context_error_sinks(const struct context_comparison *c);
/* single: of the same inputs on one rank; NULL: none. Both finished. Caller owns. */
/* What one rank alone may be off by: more is no rounding, and no measure for the others. */
double context_single_most(const struct run_config *config);
struct context_comparison *context_comparison_new(const struct record *parallel, const struct record *reference, const struct record *single);
void context_comparison_free(struct context_comparison *comparison);   /* accepts NULL */
bool context_comparison_any(const struct context_comparison *c, enum context_tensor tensor); /* wrong or imprecise on any rank */
/* Does anything err by more than the limits without room for few numbers? Then the pair in fp64 tells. */
bool context_comparison_suspect(const struct context_comparison *comparison);
bool context_comparison_fails(const struct context_comparison *c);

/* Is it a row that all members have? */
bool context_is_joint(const struct run_config *config, int64_t position);
/* Which member holds each position of a sequence, by the layout; -1: all (joint). Into ret [seq]. */
void context_holders(const struct run_config *config, const int32_t *documents, int *ret);

/* How the errors are spread over the members of the first group that has any: "constant", "grows with the rank", ... and what that suggests. */
struct context_shape_of_errors { const char *word, *hint; };
struct context_shape_of_errors context_error_shape(const struct context_comparison *c, enum context_tensor tensor);

#endif
