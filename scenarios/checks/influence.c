/* influence: which positions a token can reach, exactly.
 *
 * One step of each run with one token of one sequence changed (scenarios/variations.h; no target is). Then, by bits:
 *   nothing may change in another sequence, before it where attention is causal, or in another document where the mask
 *   keeps them apart; found is the first place in the dataflow where something does
 *   its own position must change at the output of every unit, and another one that may see it at the last layer's, where
 *   there is one: a key that nobody reads is lost (not held of narrow formats, where a change may be rounded away, nor
 *   where dropout may leave nothing of it)
 * Limit: exact, in every format, with arithmetic in any order: what is not read has no effect on any bit.
 *
 * Cost: a step of each run; so with "deep", or where the runs differ in what they compute forward. */
#include <math.h>
#include <stdlib.h>

#include "model/data.h"
#include "scenarios/check.h"
#include "scenarios/context_due.h"
#include "scenarios/context_checks.h"
#include "scenarios/facts.h"
#include "scenarios/variations.h"

struct reach { const struct run_config *config; const struct token_edit *edit; const int32_t *documents; /* [seq] */ };

/* In a window each layer carries it window - 1 positions on. */
static bool may_change(const struct reach *reach, const struct rows_fact *fact, int position)
{
    const struct model_config *model = &reach->config->model;
    int from = reach->edit->position;
    if (fact->sequence != reach->edit->sequence) return false;
    if (model->window > 0 && llabs((long long)position - from) > (long long)fact->unit * (model->window - 1)) return false;
    if (model->causal && position < from) return false;
    return !model->document_mask || reach->documents[position] == reach->documents[from];
}

/* Positions of the entry that changed though they must not. */
static int count_leaks(const struct reach *reach, const struct rows_fact *before, const struct rows_fact *after, int *ret_first, int *ret_closed)
{
    int leaks = 0;
    *ret_closed = 0;
    for (int i = 0; i < before->count; i++) {
        if (may_change(reach, before, rows_fact_position(before, i))) continue;
        ++*ret_closed;
        if (before->row[i] == after->row[i]) continue;
        if (leaks++ == 0) *ret_first = rows_fact_position(before, i);
    }
    return leaks;
}

static void report_leak(const struct reach *reach, struct check_output *output, const struct variation *v, struct rows_entry found,
                        int leaks, int first, int closed)
{
    const struct rows_fact *fact = found.fact;
    char unit[32];
    unit_name(&reach->config->model, fact->unit, unit);
    int rank = found.rank;
    const struct site *decision = context_decision(v->record, 0, fact->unit, &rank);
    bool split = context_is_split_attention(v->record, fact->site);
    struct finding finding = finding_new(decision ? decision : split ? &site_layer_forward : fact->site, place_at_unit(reach->config, v->standalone ? -1 : rank, 0, -1, fact->unit));
    finding.expected = 0;
    finding.got = (double)leaks / closed;
    finding_pattern(&finding, "leaks");
    finding_say(&finding, "in the %s run another token at position %d of sequence %d changes %d of %d positions of sequence %d that must not "
                "see it, the first of them %d, from %s of %s on",
                v->standalone ? "standalone" : "parallel", reach->edit->position, (int)reach->edit->sequence, leaks, closed,
                fact->sequence, first, split ? "the output of the split attention" : fact->site->name, unit);
    check_find(output, &finding);
}

/* Dropout takes away what so few positions get of the changed one, once in 2^40 or more often: p^(positions x channels). */
static bool may_all_be_dropped(const struct model_config *model, int positions)
{
    return model->dropout > 0 && positions * (double)model->dim * log2(model->dropout) > -40;
}

/* Is the changed token seen where it must be? `last`: the last unit that is a layer. */
static void look_for_loss(const struct reach *reach, struct check_output *output, const struct variation *v, struct rows_entry entry,
                          const struct rows_fact *after)
{
    const struct rows_fact *before = entry.fact;
    int at = reach->edit->position, others = 0, changed = 0, here = -1; /* of a slice its own positions alone are held */
    if (before->site != &site_layer_forward || before->sequence != reach->edit->sequence) return;
    for (int i = 0; i < before->count; i++) here = rows_fact_position(before, i) == at ? i : here;
    for (int i = 0; i < before->count; i++) {
        if (i == here || !may_change(reach, before, rows_fact_position(before, i))) continue;
        others++;
        changed += before->row[i] != after->row[i];
    }
    others = may_all_be_dropped(&reach->config->model, others) ? 0 : others;
    bool own = here < 0 || before->row[here] != after->row[here], is_last = before->unit == reach->config->model.layers;
    if (own && (!is_last || others == 0 || changed > 0)) return;
    char unit[32];
    unit_name(&reach->config->model, before->unit, unit);
    int rank = entry.rank;
    const struct site *decision = context_decision(v->record, 0, before->unit, &rank), *attention = layout_cp(&v->record->config.layout) > 1 ? before->site : &site_attention_mask;
    struct finding finding = finding_new(!own ? before->site : decision ? decision : attention, place_at_unit(reach->config, v->standalone ? -1 : rank, 0, -1, before->unit));
    finding_pattern(&finding, "not-seen");
    finding_say(&finding, "in the %s run another token at position %d of sequence %d changes nothing %s at the output of %s",
                v->standalone ? "standalone" : "parallel", at, before->sequence, own ? "at the other positions that may see it" : "there", unit);
    check_find(output, &finding);
}

static void compare_edit(const struct evidence *e, struct check_output *output, const struct variation *base, const struct variation *v)
{
    struct arena *arena = arena_new("influence", false);
    struct data data = data_pack(&e->config->data, e->config->model.seq, e->config->train.global_batch, arena);
    struct reach reach = {e->config, &v->edit, data.documents + (size_t)v->edit.sequence * (size_t)e->config->model.seq};
    struct rows_table before = rows_table_new(base->record), after = rows_table_new(v->record);
    bool plain = precision_is_plain(&e->config->precision);
    int leaking = -1;
    for (int i = 0; i < before.count; i++) {
        const struct rows_fact *fact = before.entries[i].fact;
        struct rows_entry other = rows_table_find(&after, fact);
        if (!other.fact || fact->sequence == leaking) continue;
        int first = 0, closed, leaks = count_leaks(&reach, fact, other.fact, &first, &closed);
        check_value(output, leaks, 0);
        if (leaks) {
            leaking = fact->sequence;
            report_leak(&reach, output, v, before.entries[i], leaks, first, closed);
        } else if (plain) {
            look_for_loss(&reach, output, v, before.entries[i], other.fact);
        }
    }
    free(before.entries);
    free(after.entries);
    arena_free(arena);
}

/* A token that was never read as due cannot be followed. */
static bool is_read(const struct variation *v)
{
    struct microbatch_place place = facts_place_of(v->record, (int)v->edit.sequence);
    return facts_finished(v->record) && facts_sample_is_due(v->record, 0, place.data_rank, place.microbatch);
}

static void run(const struct evidence *e, struct check_output *output)
{
    if (check_is_attention(e)) {
        context_influence(e, output);
        return;
    }
    if (e->config->model.moe.experts > 0 && e->config->model.moe.capacity_factor > 0) {
        check_skip(output, "who finds room at an expert depends on the other tokens (model.moe.capacity_factor)");
        return;
    }
    bool any = false;
    for (int i = 0; e->variations && i < e->variations->count; i++) {
        const struct variation *v = &e->variations->items[i], *base = variations_base(e->variations, v);
        if (v->kind != VARIATION_EDIT || !is_read(v) || !facts_finished(base->record)) continue;
        any = true;
        check_value(output, 0, 0);
        compare_edit(e, output, base, v);
    }
    if (any) return;
    check_skip(output, e->variations ? "no token has another before and behind it"
                                     : "nothing differs in the forward; --checks deep changes a token all the same");
}

const struct check check_influence = {
    .id = "influence",
    .proves = "a token reaches exactly the positions that the mask lets see it, and no other sequence",
    .tier = "deep",
    .run = run,
    .workloads = CHECK_IN(WORKLOAD_TRAIN) | CHECK_IN(WORKLOAD_ATTENTION),
};
