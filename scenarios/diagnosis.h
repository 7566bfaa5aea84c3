/* diagnosis: from the findings to the one place that is wrong. Blind: it sees what the two runs did.
 *
 * Every finding carries the site where, by dataflow, the inputs still agreed and the output did not. A wrong place
 * makes everything behind it differ too: so findings are grouped by (step, site), and the group taken is that of
 * the first step, of these the first in the dataflow order of the sites (model/sites.def). Findings without a step (a
 * deadlock, what was left over) come last; calls of a group that do not fit together come first in their step, since
 * whatever is read after them is another call's, and of these the decision to call. The component is the site's; the
 * ranks are those of all findings of that step with this component; microbatch and layer are the first places, -1
 * where it is not a matter of micro-batches, or all units of these ranks are concerned.
 *
 * PATTERNS. Each finding says in one word how its numbers look (finding.pattern); a fault of the catalogue says the
 * same in fault.signature, and candidates are ranked by comparing the two. The vocabulary:
 *   a formula in M, D, P, N, N_all, N_unshifted, n, n_rank   what the weight of a token (or, at loss.report_reduce, the
 *                          reported loss; at clip.coefficient, the coefficient) was multiplied by: "1/M", "M", "1/D",
 *                          "-1", "0", "N/N_all", "N/N_unshifted", "N/(n*M*D)", "N/(n_rank*D)"; for a form with n or
 *                          n_rank the ratio is what remains beside a mean of means ("N/(n*D)": "M"), and
 *                          a signature may give either
 *   same-samples, wrong-samples, stages-differ               data.sample
 *   other-targets                                            labels
 *   stale-version, mixed-versions, not-gathered, altered, gap, overlap  fsdp.unshard
 *   not-copied, overwritten                                  optimizer.copy, dp.param_buffer
 *   not-arrived, zeros, other-microbatch, altered            pp.send_activation, pp.send_grad
 *   altered, not-finite                                      layer.forward, layer.backward, layer.weight_gradient
 *   ignored-tokens                                           pp.loss.scale
 *   missing-microbatch, doubled-microbatch, earlier-step     pp.grad.clear, pp.grad.flush, dp.zero_grad, dp.grad.add,
 *                                                            dp.reduce_source, dp.grad.reset
 *   never, early, missing-sync                               fsdp.sync_now, dp.sync_now, ddp.hooks
 *   missing-ranks, doubled-ranks, never-posted, stale, altered, copies-differ  fsdp.reduce_grad, hsdp.replicate_reduce, dp.bucket
 *   one-use, altered                                         tied.grad_reduce
 *   per-stage, other-sum, copies-differ                      clip.norm_reduce
 *   not-updated, updated-twice, frozen-updated, version      optimizer.owns, fsdp.optimizer_params, fsdp.attributes
 *   deadlock, unreceived, unwaited, calls-differ             wherever it was */
#ifndef SCENARIOS_DIAGNOSIS_H
#define SCENARIOS_DIAGNOSIS_H

#include "scenarios/check.h"

/* Reads result->findings and fills result->diagnosis. False where no finding names a site and none can be guessed. */
bool diagnose(const struct evidence *evidence, struct result *result);

/* ---- parts of it, by file ---- */
struct diagnosis_group {
    int step;                           /* -1: of none */
    const struct site *site;
    const struct finding *first;        /* of the group */
    int count; const struct finding *const *findings; /* with this step and site */
    char pattern[48];                   /* of the first that has one */
};
/* diagnosis_words.c: the summary and what to look at next. */
void diagnosis_say(const struct evidence *evidence, const struct diagnosis_group *group, struct diagnosis *diagnosis);
/* diagnosis_evidence.c: how far inputs agree and outputs differ. */
void diagnosis_collect(const struct evidence *evidence, const struct diagnosis_group *group,
                       struct diagnosis *diagnosis);
/* diagnosis_candidates.c: which faults of the catalogue look like this. */
void diagnosis_rank(const struct evidence *evidence, const struct diagnosis_group *group, struct diagnosis *diagnosis);

#endif
