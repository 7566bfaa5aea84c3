/* row-identity: every row of data is the row it claims to be.
 *
 * Due is sequence step * global_batch + (d * M + m) * b + i for row i of data rank d's micro-batch m. Read off:
 * the sequences that the first and the last stage drew, whether both saw the same tokens and targets, and whether the
 * last stage's targets are those that the data have for the rows it drew (packed anew from the text).
 * Of rows that a router re-orders: each is a copy of the token that it is routed for, by its number and by its tag
 * (model/routing.h), is computed by the expert that was chosen, and its result goes back to the pair that it is.
 * With context parallelism these are the rows at a rank's own positions, and RoPE turns them by these positions.
 * Limit: exact. Sites: data.sample; labels for the targets of rows that are as due, cp.labels where they were shifted within a rank's part; cp.position; moe.token_index, moe.dispatch, moe.expert_rows,
 * moe.unpermute. Costs a pass over the samples and one
 * over the data. */
#include "model/data.h"
#include "scenarios/check.h"
#include "scenarios/context_checks.h"
#include "scenarios/facts.h"
#include "scenarios/routing_due.h"
#include "model/sites.h"
#include "sim/hash.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the drawn rows have in common. */
static const char *pattern_of(const struct record *record, const struct rank_record *rank,
                              const struct sample_fact *fact)
{
    const struct rank_record *first = facts_rank(record, rank->stage, 0);
    const struct sample_fact *of_first = first ? facts_sample(first, fact->step, fact->microbatch) : NULL;
    if (rank->data_rank != 0 && of_first && of_first->count == fact->count &&
        !memcmp(of_first->sequences, fact->sequences, (size_t)fact->count * sizeof *fact->sequences))
        return "same-samples";
    return "wrong-samples";
}

static void check_rows(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                       const struct sample_fact *fact)
{
    for (int i = 0; i < fact->count; i++) {
        int64_t due = facts_sequence_due(e->parallel, rank, fact) + i;
        check_value(output, fact->sequences[i] != due, 0);
        if (fact->sequences[i] == due) continue;
        struct finding finding = finding_new(&site_data_sample, place_at(rank->rank, fact->step, fact->microbatch));
        finding.expected = (double)due;
        finding.got = (double)fact->sequences[i];
        const char *pattern = pattern_of(e->parallel, rank, fact);
        finding_pattern(&finding, pattern);
        finding_say(&finding,
                    "rank %d (data rank %d) reads sequence %lld as row %d of micro-batch %d in step %d where sequence "
                    "%lld is due%s",
                    rank->rank, rank->data_rank, (long long)fact->sequences[i], i, fact->microbatch, fact->step,
                    (long long)due, strcmp(pattern, "same-samples") ? "" : ": the rows of data rank 0");
        check_find(output, &finding);
        return;
    }
}

/* First and last stage of one data rank must see the same micro-batch. */
static void check_ends(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                       const struct sample_fact *fact, bool targets_are_due)
{
    const struct record *record = e->parallel;
    if (rank->stage == 0 || !facts_is_last_stage(record, rank)) return;
    const struct rank_record *first = facts_rank(record, 0, rank->data_rank);
    const struct sample_fact *other = first ? facts_sample(first, fact->step, fact->microbatch) : NULL;
    if (!other || !facts_sample_is_due(record, fact->step, rank->data_rank, fact->microbatch))
        return; /* told by the rows */
    bool same = other->token_hash == fact->token_hash && (other->target_hash == fact->target_hash || !targets_are_due);
    check_value(output, !same, 0);
    if (same) return;
    struct finding finding = finding_new(&site_data_sample, place_at(rank->rank, fact->step, fact->microbatch));
    finding_pattern(&finding, "stages-differ");
    finding_say(&finding,
                "rank %d on the last stage and rank %d on the first read different %s for micro-batch %d in step %d",
                rank->rank, first->rank, other->token_hash != fact->token_hash ? "tokens" : "targets", fact->microbatch,
                fact->step);
    check_find(output, &finding);
}

/* The targets of the rows that were drawn. Returns whether they are the data's. */
static bool check_targets(const struct evidence *e, struct check_output *output, const struct rank_record *rank,
                          const struct sample_fact *fact, const struct data *data)
{
    bool good = facts_targets_are_due(fact, data);
    check_value(output, !good, 0);
    if (good) return true;
    bool in_shard = facts_was_chosen(rank, &site_cp_labels, fact->step, -1);
    struct finding finding = finding_new(in_shard ? &site_cp_labels : &site_labels, place_at(rank->rank, fact->step, fact->microbatch));
    finding_pattern(&finding, "other-targets");
    finding_say(&finding, "the targets that rank %d trains on in micro-batch %d of step %d are not those that follow its tokens in the data%s",
                rank->rank, fact->microbatch, fact->step, in_shard ? ": they were shifted within its part of each sequence" : "");
    check_find(output, &finding);
    return false;
}

/* As RoPE took them. */
static void check_positions(struct check_output *output, const struct rank_record *rank, int step)
{
    for (int i = 0; i < rank->choices.count; i++) {
        const struct choice_fact *fact = &rank->choices.items[i];
        if (fact->site != &site_cp_position || fact->step != step) continue;
        check_value(output, fact->count == 0, 0);
        if (fact->count != 0) continue;
        struct finding finding = finding_new(&site_cp_position, place_at(rank->rank, step, fact->microbatch));
        finding_pattern(&finding, "from-shard");
        finding_say(&finding, "rank %d counts the positions of its rows in micro-batch %d of step %d from the start of its own part of each sequence", rank->rank, fact->microbatch, step);
        check_find(output, &finding);
        return;
    }
}

static bool same_tag(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

static void check_row_in(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact, int64_t i)
{
    int64_t due = fact->slot[i] / fact->top_k;
    if (fact->from[i] != due) {
        routing_find(e, output, &site_moe_token_index, rank, fact, "other-token", (double)due, fact->from[i],
                     "row %lld of the experts is a copy of token %d where token %lld is due", (long long)i, fact->from[i], (long long)due);
    } else {
        routing_find(e, output, &site_moe_dispatch, rank, fact, "altered", fact->normed[due], fact->in[i],
                     "row %lld of the experts is not what its token %lld is", (long long)i, (long long)due);
    }
}

/* Rows of experts: copies of their tokens, multiplied by the weights of the expert that was chosen, back at their own pair. */
static void check_routed(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact,
                         const bool *padding)
{
    bool in = true, through = true, back = true;
    (void)padding;
    for (int64_t i = 0; fact->whole && i < fact->rows; i++) {
        int64_t pair = fact->slot[i];
        int expert = fact->chosen[pair];
        bool copy = fact->from[i] == pair / fact->top_k && (!routing_row_is_seen(fact, fact->slot[i]) || same_tag(fact->in[i], fact->normed[fact->from[i]]));
        bool own = i >= fact->bounds[expert] && i < fact->bounds[expert + 1];
        check_value(output, !copy || !own || fact->back[i] != pair, 0);
        if (in && !copy) check_row_in(e, output, rank, fact, i);
        if (through && !own) {
            routing_find(e, output, &site_moe_expert_rows, rank, fact, "offset", expert, NAN,
                         "row %lld, choice %lld of token %lld, is not computed by its expert %d, whose rows are %lld to %lld", (long long)i,
                         (long long)(pair % fact->top_k), (long long)(pair / fact->top_k), expert, (long long)fact->bounds[expert], (long long)fact->bounds[expert + 1] - 1);
        }
        if (back && fact->back[i] != pair) {
            routing_find(e, output, &site_moe_unpermute, rank, fact, "wrong-inverse", (double)pair, fact->back[i],
                         "the result of row %lld, choice %lld of token %lld, goes back to choice %d of token %d", (long long)i, (long long)(pair % fact->top_k),
                         (long long)(pair / fact->top_k), fact->back[i] % fact->top_k, fact->back[i] / fact->top_k);
        }
        in = in && copy;
        through = through && own;
        back = back && fact->back[i] == pair;
    }
}

static void run(const struct evidence *e, struct check_output *output)
{
    if (check_is_attention(e)) {
        context_row_identity(e, output);
        return;
    }
    const struct record *record = e->parallel;
    if (record->config.train.steps == 0) return; /* nothing finite is left to look at */
    struct arena *arena = arena_new("row-identity check", false);
    int64_t sequences = (int64_t)record->config.train.steps * record->config.train.global_batch;
    struct data data = data_pack(&record->config.data, record->config.model.seq, sequences, arena);
    for (int step = 0; step < record->config.train.steps; step++) {
        for (int r = 0; r < record->ranks; r++) {
            const struct rank_record *rank = &record->rank[r];
            if (record->config.model.rope) check_positions(output, rank, step);
            for (int i = 0; i < rank->samples.count; i++) {
                if (rank->samples.items[i].step != step) continue;
                check_rows(e, output, rank, &rank->samples.items[i]);
                bool due = check_targets(e, output, rank, &rank->samples.items[i], &data);
                check_ends(e, output, rank, &rank->samples.items[i], due);
            }
        }
    }
    arena_free(arena);
    routing_each(e, output, check_routed);
}

const struct check check_row_identity = {
    .id = "row-identity",
    .proves =
        "every row of data is the row it claims to be: the sequences that each rank reads are those due to its data "
        "rank and micro-batch, first and last stage read the same, and what an expert reads is the token that was routed to it",
    .tier = "default",
    .run = run,
    .workloads = CHECK_IN(WORKLOAD_TRAIN) | CHECK_IN(WORKLOAD_ATTENTION),
};
