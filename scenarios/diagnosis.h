/* diagnosis: from the findings to the one place that is wrong. Blind: it sees what the two runs did.
 *
 * Every finding carries the site where, by dataflow, the inputs still agreed and the output did not. A wrong place
 * makes everything behind it differ too: so findings are grouped by (step, site), and the group taken is that of
 * the first step, of these the first in the dataflow order of the sites (model/sites.def). Findings without a step (a
 * deadlock, what was left over) come last; calls of a group that do not fit together come first in their step, since
 * whatever is read after them is another call's, and of these the decision to call. The component is the site's, but
 * where the numbers tell who at the site is to blame (COMPONENTS, below); the
 * ranks are those of all findings of that step with this component; microbatch and layer are the first places, -1
 * where it is not a matter of micro-batches, or all units of these ranks are concerned.
 *
 * COMPONENTS. At a site of communication four parties may be wrong: who calls, who keeps the buffers, what carries the
 * call out, and the machine. Told apart like this, the first that holds:
 *   the site's   race found that a reduction of gradients was not waited for: that wait is the strategy's own last step
 *   async        race found a buffer of another call in use between its start and its wait, or written there
 *   collectives  the call wrote its output over its input, undeclared (collective-match: aliased)
 *   the site's   members' calls differ, or all make another call than is due here (operation, reduction, group,
 *                root), or none: what to call is the caller's; also an old result, which is the right one of another step
 *   precision    all members alike move another format than is declared
 *   hardware     as below, but at one call of several of a step, once, when the same call was right in an earlier
 *                step: what is wrong in the program comes again
 *   collectives  the calls are as due on all members, what went in is noted and right, and what came out is not
 *                what the operation gives: values moved, lost, doubled, scaled or rounded on the way
 *                Noted are: the shards before a gather (what is gathered is looked at where it was put in place, so that
 *                the copy there counts as the call's), each bucket before and after its reduction, squares and
 *                norm, a rank's tokens and the step's, the printed loss before and after its average. Of the
 *                second reductions (hsdp.replicate_reduce, tied.grad_reduce) that tells which one it was, and no more: what
 *                they sum is a sum of the strategy's, and it is always the site's
 * Point to point there is one sender and one receiver, and nothing tells them from the wire: always the site's. Of
 * layer.forward and layer.backward: hardware where it is one micro-batch of several on one rank at one unit, after a
 * step in which all was right; else the site's. Hardware is an inference and may be wrong: a program that goes wrong
 * only once, in one place, looks the same.
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
 *   batch-dependent, leaks, not-seen                         attention.output_view, attention.mask, wherever it was
 *   split-attention                                          layer.forward: what is wrong inside shows behind attention that is split over cp first
 *   over-tokens, rounded, tie-order, other-choice, with-bias, before-drop, capacity, position, other-pairs, lost, extra,
 *   padding, not-zeroed, other-score, top-k-factor, other-token, offset, wrong-inverse, zeros, not-updated,
 *   without-bias, choices-first, counted-again, without-tokens  the moe sites, moe.aux, ep.count_reduce
 *   same-stream, moved-on, other-stream, other-mask         dropout.sequence, dropout.generator
 *   altered, not-finite                                      layer.forward, layer.backward, layer.weight_gradient
 *   ignored-tokens                                           pp.loss.scale
 *   missing-microbatch, doubled-microbatch, earlier-step     pp.grad.clear, pp.grad.flush, dp.zero_grad, dp.grad.add,
 *                                                            dp.reduce_source, dp.grad.reset
 *   never, early, missing-sync                               fsdp.sync_now, dp.sync_now, ddp.hooks
 *   missing-ranks, doubled-ranks, never-posted, stale, altered, copies-differ  fsdp.reduce_grad, hsdp.replicate_reduce, dp.bucket
 *   one-use, altered                                         tied.grad_reduce
 *   per-stage, other-sum, copies-differ                      clip.norm_reduce
 *   not-updated, updated-twice, frozen-updated, version, other-group      optimizer.owns, optimizer.group, fsdp.optimizer_params, fsdp.attributes
 *   deadlock, unreceived, unwaited, calls-differ             wherever it was
 *   read-early, overwritten, aliased                         at the asynchronous call
 *   local-only, not-arrived, resent, causal-skip, past-skipped, unguarded-past, masked-otherwise, over-heads, past-skipped-and-overwritten, skipped-step, nothing, hidden-too, last-block-only, doubled,
 *   missing, not-due, stale, other-block, wrong-positions, part-missing, masked-too-much, leaks, plain-average, not-normalised,
 *   altered, diluted, zeros, badly-merged, alone-too, lse-base, lse-scaled, lse-rounded, rounded, overflow, empty-rows, sink,
 *   joint-missing, joint-doubled, ignored                    the forward's sites of context parallelism (context_inference.h)
 *   not-home, wrong-way, dk-dv, dq-dk, dq, dk, dv, all       the backward's: what of the gradients is wrong
 *   wrong-root                                               loss.report_broadcast
 *   wrong-group                                              fsdp.unshard, fsdp.reduce_grad, dp.all_reduce_grad, hsdp.replicate_reduce
 *   wrong-format, rounded, not-rounded                       at the call, the store, loss.sum, loss.report_reduce */
#ifndef SCENARIOS_DIAGNOSIS_H
#define SCENARIOS_DIAGNOSIS_H

#include "scenarios/check.h"

/* Reads result->findings and fills result->diagnosis. False where no finding names a site and none can be guessed. */
bool diagnose(const struct evidence *evidence, struct result *result);

/* The same of the standalone run, where nothing but the comparison with it failed and its own records are not as due
 * (diagnosis_reference.c). False: it is not that, or can't be told. */
struct check_selection;
bool diagnose_reference(const struct evidence *evidence, const struct check_selection *selection, struct result *result);

/* ---- parts of it, by file ---- */
struct diagnosis_group {
    int step;                           /* -1: of none */
    const struct site *site;
    const struct finding *first;        /* of the group */
    int count; const struct finding *const *findings; /* with this step and site */
    char pattern[48];                   /* of the first that has one */
    bool guessed;                       /* no finding names a site: the group is one finding of the comparison's */
};
/* diagnosis_guess.c: the place, from the comparison alone. Its site is NULL where there is nothing to go by. */
struct finding diagnosis_guess(const struct evidence *evidence, const struct result *result);
/* diagnosis_component.c: the component, by the rule above. */
const char *diagnosis_component(const struct evidence *evidence, const struct diagnosis_group *group);
/* diagnosis_words.c: the summary and what to look at next. */
void diagnosis_say(const struct evidence *evidence, const struct diagnosis_group *group, struct diagnosis *diagnosis);
/* diagnosis_evidence.c: how far inputs agree and outputs differ. */
void diagnosis_collect(const struct evidence *evidence, const struct diagnosis_group *group,
                       struct diagnosis *diagnosis);
/* diagnosis_candidates.c: which faults of the catalogue look like this. */
void diagnosis_rank(const struct evidence *evidence, const struct diagnosis_group *group, struct diagnosis *diagnosis);

#endif
