/* contribution: each parameter's reduced gradient holds every (data rank, micro-batch) of this step once, and
 * nothing else; and so every sequence of the step once.
 *
 * Read off the origin ledgers, one station after the other, each against the one before:
 *   decision    was this unit reduced after this micro-batch as fsdp.sync says?            -> fsdp.sync_now
 *   ready       was it then reduced? (not a bucket that waits for a parameter nothing used) -> ddp.ready
 *   local       what went into reductions (or never did): this rank's micro-batches of this
 *               step once each, none of an earlier step                                    -> pp.grad.clear
 *               (what emptied it instead, where that was decided: dp.zero_grad, dp.grad.add, dp.reduce_source; what
 *               left it: dp.grad.reset)
 *               (a missing one where each is reduced: a late result emptied it             -> pp.grad.flush)
 *   reduced     what the optimizer is given: for each micro-batch that went in, all members -> fsdp.reduce_grad;
 *               each micro-batch at all, none of an earlier step (but where the reduction
 *               was never posted, or gave an earlier result again: fsdp.reduce_grad)       -> pp.grad.flush
 *   tied        both uses of a tied embedding                                              -> tied.grad_reduce
 *   sum         the numbers: the reduced gradient is the sum of what went in over the divisor, by sketches, which are
 *               linear; within 64 roundings of the norms that were added                   -> the reduction, as above;
 *               a second one where its own sum is wrong (scenarios/reduction_sums.h)
 * Multiplicities are integers: the limit is exact. A micro-batch whose measured weight is 0 does not
 * contribute whatever its ledger says (site: pp.loss.scale). The sequences come from the samples (data.sample). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/compare.h"
#include "scenarios/reduction_sums.h"
#include "scenarios/sequence_sums.h"
#include "scenarios/unit_contribution.h"
#include "scenarios/unit_values.h"

static void find_at(const struct evidence *e, struct check_output *output, const struct unit_contribution *u,
                    const struct site *site, int microbatch, const char *pattern, const char *text)
{
    struct finding finding =
        finding_new(site, place_at_unit(&e->parallel->config, u->rank->rank, u->step, microbatch, u->unit));
    char name[32];
    unit_name(&e->parallel->config.model, u->unit, name);
    finding_pattern(&finding, pattern);
    finding_say(&finding, "in step %d on rank %d %s %s", u->step, u->rank->rank, name, text);
    check_value(output, 1, 0);
    check_find(output, &finding);
}

/* "micro-batches 0, 2 and 3" */
static void list_microbatches(const bool *which, int count, char *text, size_t size)
{
    int total = 0, done = 0;
    for (int m = 0; m < count; m++) total += which[m];
    size_t used = (size_t)snprintf(text, size, total == 1 ? "micro-batch" : "micro-batches");
    for (int m = 0; m < count && used + 16 < size; m++) {
        if (!which[m]) continue;
        const char *before = done == 0 ? " " : done + 1 == total ? " and " : ", ";
        used += (size_t)snprintf(text + used, size - used, "%s%d", before, m);
        done++;
    }
}

static int first_of(const bool *which, int count)
{
    for (int m = 0; m < count; m++) {
        if (which[m]) return m;
    }
    return -1;
}

/* ---- the decision ---- */

static void check_sync(const struct evidence *e, struct check_output *output, const struct unit_contribution *u)
{
    int M = e->parallel->config.layout.microbatches, seen = 0;
    bool each = e->parallel->config.layout.sync == SYNC_EACH_MICROBATCH, any = false;
    for (int i = 0; i < u->rank->syncs.count; i++) {
        const struct sync_fact *fact = &u->rank->syncs.items[i];
        if (fact->step == u->step && fact->unit == u->unit) any = any || fact->synced;
    }
    for (int i = 0; i < u->rank->syncs.count; i++) {
        const struct sync_fact *fact = &u->rank->syncs.items[i];
        if (fact->step != u->step || fact->unit != u->unit) continue;
        bool due = each || ++seen == M;
        if (fact->synced == due) continue;
        char text[160];
        snprintf(text, sizeof text, due ? "does not reduce its gradient after micro-batch %d%s"
                                        : "reduces its gradient after micro-batch %d, before the last%s",
                 fact->microbatch, any || !facts_finished(e->parallel) ? "" : ", nor at any other time");
        find_at(e, output, u, fact->asked == due ? &site_dp_sync_now : &site_fsdp_sync_now, fact->microbatch,
                !due  ? "early"
                : any ? "missing-sync"
                      : "never",
                text);
    }
}

/* No decision was made at all after a backward whose gradient is still there: nothing was called that could. */
static void check_hooks(const struct evidence *e, struct check_output *output, const struct unit_contribution *u)
{
    int M = e->parallel->config.layout.microbatches, left = 0;
    for (int i = 0; i < layout_data_ranks(&e->parallel->config.layout) * M; i++) left += u->unreduced[i] > 0;
    if (left == 0 || !facts_finished(e->parallel) || unit_contribution_has_backward(u)) return;
    if (layout_data_ranks(&e->parallel->config.layout) == 1) return;
    find_at(e, output, u, &site_ddp_hooks, -1, "never", "keeps its own gradient: after its backward nothing asks whether to reduce it");
}

/* Asked for, and never given to a reduction, since its bucket waited for a parameter that no backward reaches. */
static void check_ready(const struct evidence *e, struct check_output *output, const struct unit_contribution *u)
{
    const struct rank_record *rank = u->rank;
    for (int i = 0; i < rank->syncs.count; i++) {
        const struct sync_fact *fact = &rank->syncs.items[i];
        if (fact->step != u->step || fact->unit != u->unit || !fact->synced) continue;
        if (!facts_was_chosen(rank, &site_ddp_ready, u->step, u->unit)) continue;
        bool went_in = false;
        for (int k = 0; k < rank->gradients.count && !went_in; k++) {
            const struct gradient_fact *gradient = &rank->gradients.items[k];
            went_in = gradient->stage == GRADIENT_LOCAL && gradient->step == u->step && gradient->unit == u->unit &&
                      gradient->microbatch == fact->microbatch;
        }
        if (went_in) continue;
        find_at(e, output, u, &site_ddp_ready, fact->microbatch, "never-ready",
                "is not reduced though it is asked to be: its bucket waits for a parameter that nothing used");
    }
}

/* ---- what went in ---- */

/* What else empties an accumulator, or keeps it, than pp.grad.clear. */
static const struct site *emptied_by(const struct unit_contribution *u, const struct site *otherwise)
{
    static const struct site *const sites[] = {&site_dp_zero_grad, &site_dp_grad_add, &site_dp_reduce_source, &site_ep_weight_gradient};
    for (size_t i = 0; i < sizeof sites / sizeof sites[0]; i++) {
        if (facts_was_chosen(u->rank, sites[i], u->step, u->unit)) return sites[i];
    }
    return otherwise;
}

static const struct site *kept_by(const struct unit_contribution *u, int step)
{
    return facts_was_chosen(u->rank, &site_dp_grad_reset, step, u->unit) ? &site_dp_grad_reset : &site_pp_grad_clear;
}


static void check_local(const struct evidence *e, struct check_output *output, const struct unit_contribution *u)
{
    int M = e->parallel->config.layout.microbatches, uses = unit_contribution_local_uses(e->parallel, u);
    bool *missing = memory_zalloc((size_t)M), *doubled = memory_zalloc((size_t)M);
    char which[200], text[320];
    for (int m = 0; m < M; m++) {
        for (int d = 0; d < layout_data_ranks(&e->parallel->config.layout); d++) {
            if (!facts_is_source(e->parallel, u->rank, u->unit, d)) continue;
            int held = u->local[d * M + m], left = u->unreduced[d * M + m];
            missing[m] = missing[m] || (held + left < uses && facts_finished(e->parallel));
            doubled[m] = doubled[m] || held > uses;
        }
    }
    if (first_of(missing, M) >= 0 && unit_contribution_has_backward(u)) {
        /* Reduced at each micro-batch, an accumulator is emptied when its result is taken over: if that comes late,
         * it takes the next micro-batch along. */
        bool each = e->parallel->config.layout.sync == SYNC_EACH_MICROBATCH;
        const struct site *site = emptied_by(u, each ? &site_pp_grad_flush : &site_pp_grad_clear);
        list_microbatches(missing, M, which, sizeof which);
        snprintf(text, sizeof text, "never reduces the gradient of %s: it was %s", which, site == &site_ep_weight_gradient ? "never computed" : "emptied before");
        find_at(e, output, u, site, first_of(missing, M), "missing-microbatch", text);
    }
    if (first_of(doubled, M) >= 0) {
        list_microbatches(doubled, M, which, sizeof which);
        snprintf(text, sizeof text, "reduces the gradient of %s more than once: it was not emptied after a reduction",
                 which);
        find_at(e, output, u, kept_by(u, u->step), first_of(doubled, M), "doubled-microbatch", text);
    }
    if (u->local_earlier > 0 && !u->left_behind) {
        snprintf(text, sizeof text, "reduces gradients of step %d again: they were not emptied after their reduction",
                 u->earlier_step);
        find_at(e, output, u, kept_by(u, u->earlier_step), -1, "earlier-step", text);
    }
    free(missing);
    free(doubled);
}

/* ---- what came out ---- */

/* With replicas of shards: all that is lost is other replicas' part, so that it was lost in the sum over them, or that
 * sum was never called. */
static const struct site *lost_at(const struct evidence *e, const struct unit_contribution *u, const struct site *otherwise,
                                  const bool *lost)
{
    const struct layout *layout = &e->parallel->config.layout;
    int M = layout->microbatches, D = layout_data_ranks(layout);
    if (layout->zero < ZERO_2 || layout->dp_replicate == 1) return otherwise;
    for (int d = 0; d < D; d++) {
        for (int m = 0; m < M; m++) {
            bool missing = lost[m] && u->local[d * M + m] > 0 && u->reduced[d * M + m] == 0;
            if (missing && d / (layout_shards(layout) / layout_shards_alike(layout)) == u->rank->replicate) return otherwise;
        }
    }
    if (facts_was_chosen(u->rank, &site_hsdp_replicate, u->step, u->unit)) return &site_hsdp_replicate;
    return facts_was_chosen(u->rank, &site_hsdp_accumulate, u->step, u->unit) ? &site_hsdp_accumulate : &site_hsdp_replicate_reduce;
}


static void check_reduced_members(const struct evidence *e, struct check_output *output,
                                  const struct unit_contribution *u)
{
    int D = layout_data_ranks(&e->parallel->config.layout), M = e->parallel->config.layout.microbatches;
    bool *lost = memory_zalloc((size_t)M), *flushed = memory_zalloc((size_t)M), *doubled = memory_zalloc((size_t)M);
    bool repeated = unit_contribution_is_repeated(e->parallel, u),
         called = unit_contribution_was_called(e->parallel, u);
    const struct site *reduction = unit_contribution_reduction(e->parallel, u->rank, u->step, u->unit);
    bool each = e->parallel->config.layout.sync == SYNC_EACH_MICROBATCH;
    char which[200], text[320];
    int member = -1, doubled_members = 0, doubler = -1;
    for (int d = 0; d < D; d++) {
        bool more = false;
        for (int m = 0; m < M; m++)
            more =
                more || u->reduced[d * M + m] > u->local[d * M + m] + u->unreduced[d * M + m];
        doubled_members += more;
        if (more) doubler = d;
    }
    for (int m = 0; m < M; m++) {
        int present = 0, due = 0;
        for (int d = 0; d < D; d++) {
            present += u->reduced[d * M + m] > 0;
            due += u->local[d * M + m] > 0;
            doubled[m] = doubled[m] ||
                         u->reduced[d * M + m] > u->local[d * M + m] + u->unreduced[d * M + m];
            if (u->local[d * M + m] > 0 && u->reduced[d * M + m] == 0 && member < 0) member = d;
        }
        flushed[m] = due > 0 && present == 0;
        lost[m] = due > present && present > 0;
    }
    /* Taken over in time, and not what went in: the reduction was not waited for, whatever the flush did. */
    bool taken = facts_was_taken(u->rank, u->step, u->unit, each ? first_of(flushed, M) : -1);
    const struct site *second = reduction_sums_second(e->parallel, u->rank, u->step, u->unit);
    bool released = facts_was_chosen(u->rank, &site_pp_grad_release, u->step, u->unit);
    const struct site *late = repeated || !called ? reduction
                              : second            ? second
                              : released          ? &site_pp_grad_release
                              : taken             ? facts_reduction_site(&e->parallel->config, u->unit)
                                                  : &site_pp_grad_flush;
    if (first_of(flushed, M) >= 0) {
        list_microbatches(flushed, M, which, sizeof which);
        snprintf(text, sizeof text, "is updated without %s, which %s", which,
                 !called    ? "was due in a reduction that was never posted"
                 : repeated ? "did go into a reduction: an old result took its place"
                 : second   ? "did go into a reduction: a second one lost it"
                 : released ? "went into one reduction and not into another: the accumulator was emptied in between"
                 : taken    ? "did go into a reduction: what was taken for its result is not"
                            : "did go into a reduction: its result was not waited for");
        find_at(e, output, u, late, first_of(flushed, M),
                !called    ? "never-posted"
                : repeated ? "stale"
                           : "missing-microbatch",
                text);
    }
    if (first_of(lost, M) >= 0) {
        list_microbatches(lost, M, which, sizeof which);
        snprintf(text, sizeof text, "is updated without what data rank %d contributed to %s", member, which);
        find_at(e, output, u, lost_at(e, u, reduction, lost), each ? first_of(lost, M) : -1, "missing-ranks", text);
    }
    if (first_of(doubled, M) >= 0) {
        list_microbatches(doubled, M, which, sizeof which);
        snprintf(text, sizeof text, "is updated with more of %s than went into its reduction", which);
        struct unit_contribution from = *u; /* one member alone came in twice: it is that member's doing */
        if (doubled_members == 1 && D > 1) from.rank = facts_rank(e->parallel, u->rank->stage, doubler);
        find_at(e, output, &from, reduction, -1, "doubled-ranks", text);
    }
    if (u->reduced_earlier > 0 && u->local_earlier == 0) {
        snprintf(text, sizeof text, "is updated with gradients of step %d, %s", u->earlier_step,
                 repeated ? "as that step was already" : "whose reduction was not waited for in its own step");
        find_at(e, output, u, late, -1, repeated ? "stale" : "earlier-step", text);
    }
    free(lost);
    free(flushed);
    free(doubled);
}

/* The two uses of a tied embedding on two stages: each copy's gradient must hold both. */
static void check_uses(const struct evidence *e, struct check_output *output, const struct unit_contribution *u)
{
    if (!u->has_reduced || u->uses_reduced[0] + u->uses_reduced[1] == 0) return;
    for (int part = 0; part < 2; part++) {
        if (u->uses_reduced[part] > 0) continue;
        bool early = facts_was_chosen(u->rank, &site_optimizer_gradients, u->step, u->unit);
        find_at(e, output, u, early ? &site_optimizer_gradients : &site_tied_grad_reduce, -1, "one-use",
                part ? "is updated without what its use as the output contributes"
                     : "is updated without what its use at the input contributes");
    }
}

/* A micro-batch that the ledger names and the numbers do not hold. */
static void check_weightless(const struct evidence *e, struct check_output *output, const struct unit_contribution *u)
{
    int D = layout_data_ranks(&e->parallel->config.layout), M = e->parallel->config.layout.microbatches;
    for (int d = 0; u->fact && u->fact->probe_count >= 2 * D * M && d < D; d++) {
        for (int m = 0; m < M; m++) {
            if (u->reduced[d * M + m] == 0 || u->fact->probe[((u->step & 1) * D + d) * M + m] != 0) continue;
            const struct rank_record *last = facts_rank(e->parallel, e->parallel->config.layout.pp - 1, d);
            const struct loss_fact *loss = last ? facts_loss(last, u->step, m) : NULL;
            if (!loss || loss->valid == 0 || loss->seed != 0) continue;
            char text[160];
            snprintf(text, sizeof text,
                     "is updated without micro-batch %d of data rank %d, whose loss was multiplied by 0", m, d);
            struct unit_contribution where = *u;
            where.rank = last; /* the seed is given there */
            find_at(e, output, &where, &site_pp_loss_scale, m, "0", text);
            return;
        }
    }
}

/* ---- the numbers ---- */

/* All holders' ledgers and probes are as due, so that the sum is the one that must come out. */
static bool ledgers_are_right(const struct record *record, int step, int unit)
{
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].gradients.count; i++) {
            const struct gradient_fact *fact = &record->rank[r].gradients.items[i];
            if (fact->step == step && fact->unit == unit && fact->stage == GRADIENT_REDUCED &&
                !unit_contribution_is_right(record, &record->rank[r], fact)) return false;
        }
    }
    return true;
}

/* Where the gradient is sharded, the comparison tells whose rows are wrong. */
static bool rows_differ(const struct evidence *e, int rank, int step, int unit)
{
    if (!e->comparison || e->parallel->config.layout.zero == ZERO_0) return true;
    bool any = false;
    for (int p = 0; p < e->comparison->params; p++) {
        const struct difference *d = comparison_gradient(e->comparison, step, p);
        if (!d || !d->wrong || e->parallel->params.params[p].unit != unit) continue;
        any = any || d->ranks_count > 0;
        for (int i = 0; i < d->ranks_count; i++) {
            if (d->ranks[i] == rank) return true;
        }
    }
    return !any;
}

static void check_sum(const struct evidence *e, struct check_output *output, int rank, int step, int unit,
                      const struct unit_values *values)
{
    const struct record *record = e->parallel;
    bool tied = unit == 0 && record->config.model.tie_embeddings && record->config.layout.pp > 1;
    double error = unit_values_sum_error(values, rank, step, unit), limit = unit_values_sum_limit(values->record);
    check_value(output, error, limit);
    if (error <= limit || !rows_differ(e, rank, step, unit)) return;
    struct unit_contribution where = {.rank = &record->rank[rank], .step = step, .unit = unit};
    const struct site *site = facts_was_chosen(where.rank, &site_dp_bucket, step, unit) ? &site_dp_bucket : reduction_sums_second(record, where.rank, step, unit);
    if (!site) site = sequence_sums_other(record, where.rank, step, unit);
    const struct site *first = facts_reduction_site(&record->config, unit);
    if (!site) site = tied && !reduction_sums_any_wrong(record, first, step) ? &site_tied_grad_reduce : first;
    const char *pattern = site == &site_tp_head_norm_grad ? "head-norm-not-summed" : site == &site_moe_router_grad ? "router-not-summed" : "altered";
    find_at(e, output, &where, site, -1, pattern, "is updated with a gradient that is not the sum of what went into its reduction");
}

static void check_sums(const struct evidence *e, struct check_output *output, int step, int unit,
                       const struct unit_values *values)
{
    if (!ledgers_are_right(e->parallel, step, unit)) return;
    for (int r = 0; r < e->parallel->ranks; r++) {
        const struct rank_record *rank = &e->parallel->rank[r];
        bool reduced = false;
        for (int i = 0; i < rank->gradients.count && !reduced; i++) {
            const struct gradient_fact *fact = &rank->gradients.items[i];
            reduced = fact->step == step && fact->unit == unit && fact->stage == GRADIENT_REDUCED;
        }
        if (reduced) check_sum(e, output, r, step, unit, values);
    }
}

/* ---- sequences ---- */

static void check_sequences(const struct evidence *e, struct check_output *output, int step)
{
    const struct record *record = e->parallel;
    int batch = record->config.train.global_batch, reads = 0;
    int *times = memory_zalloc((size_t)batch * sizeof *times);
    for (int r = 0; r < record->ranks; r++) {
        if (record->rank[r].stage != 0) continue;
        for (int i = 0; i < record->rank[r].samples.count; i++) {
            const struct sample_fact *fact = &record->rank[r].samples.items[i];
            for (int k = 0; fact->step == step && k < fact->count; k++) {
                int64_t at = fact->sequences[k] - (int64_t)step * batch;
                if (at >= 0 && at < batch) times[at]++;
                reads += facts_is_first_reader(record, &record->rank[r]) && record->rank[r].cp == 0; /* cp ranks read the same sequences */
            }
        }
    }
    int missing = 0, first = -1;
    for (int i = 0; i < batch; i++) {
        if (times[i] == 0 && first < 0) first = i;
        missing += times[i] == 0;
    }
    free(times);
    if (reads < batch || missing == 0) return; /* an unfinished step */
    struct finding finding = finding_new(&site_data_sample, place_at(-1, step, -1));
    finding.expected = batch;
    finding.got = batch - missing;
    finding_say(
        &finding,
        "step %d trains on %d different sequences of its %d: sequence %lld and %d others never enter a gradient", step,
        batch - missing, batch, (long long)step * batch + first, missing - 1);
    check_value(output, missing, 0);
    check_find(output, &finding);
}

static void run(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    struct unit_values values = unit_values_new(evidence_fine(e));
    check_value(output, 0, 0);
    for (int step = 0; step < record->config.train.steps; step++) {
        check_sequences(e, output, step);
        for (int unit = 0; unit < gradient_unit_count(&record->config); unit++) {
            for (int r = 0; r < record->ranks; r++) {
                struct unit_contribution u;
                if (!unit_contribution_read(record, r, step, unit, &u)) continue;
                check_sync(e, output, &u);
                check_hooks(e, output, &u);
                check_ready(e, output, &u);
                check_local(e, output, &u);
                if (u.has_reduced) check_reduced_members(e, output, &u);
                if (unit == 0 && record->config.model.tie_embeddings) check_uses(e, output, &u);
                check_weightless(e, output, &u);
                unit_contribution_free(&u);
            }
            check_sums(e, output, step, unit, &values);
        }
    }
    unit_values_free(&values);
}

const struct check check_contribution = {
    .id = "contribution",
    .proves = "each parameter's reduced gradient holds every (data rank, micro-batch) of this step once, and nothing "
              "else; every sequence of the step enters it once",
    .tier = "default",
    .run = run,
};
