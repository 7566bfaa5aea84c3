/* context_oracle: out, lse, dq, dk, dv of every rank and head against the reference in fp64 on the same rounded inputs.
 *
 * Limits: context_compare.h. With a pair in fp64 (deep, or where something differs) that one's 1e-12 holds beside them: no
 * rounding of a narrow format hides a small mistake there. Where out and lse are right, which of dq, dk and dv are wrong is the
 * pattern, and names the place (context_inference.h). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/sites.h"

#include "scenarios/context_checks.h"
#include "scenarios/context_due.h"
#include "scenarios/facts.h"

struct place context_place(const struct evidence *e, int rank)
{
    return place_at(rank, 0, -1);
}

static bool has_other_scale(const struct record *record, int rank)
{
    for (int i = 0; i < record->rank[rank].factors.count; i++) {
        if (context_is_other_scale(record, &record->rank[rank].factors.items[i])) return true;
    }
    return false;
}

const struct site *context_chosen_site(const struct record *record, bool backward)
{
    const struct site *first = NULL;
    int border = model_site_order(context_site("cp.backward_stats"));
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].choices.count; i++) {
            const struct choice_fact *fact = &record->rank[r].choices.items[i];
            const struct site *site = fact->site;
            if (fact->count == fact->whole || strncmp(site->name, "cp.", 3) || (model_site_order(site) >= border) != backward) continue;
            if (!first || model_site_order(site) < model_site_order(first)) first = site;
        }
        if (!backward && !first && has_other_scale(record, r)) first = &site_cp_softmax_scale;
    }
    return first;
}

static bool tells(const char *word)
{
    static const char *const words[] = {"local-only", "last-block-only", "resent", "causal-skip", "past-skipped", "unguarded-past", "past-skipped-and-overwritten", "doubled", "skipped-step", "nothing", "not-home", "wrong-way", "lse-base", "dq", "dq-dk", "first-kept", "wrong-group", "skipped-and-overwritten", "overflow", "other-rows", "rounded"};
    for (size_t i = 0; word && i < sizeof words / sizeof words[0]; i++) {
        if (!strcmp(word, words[i])) return true;
    }
    return false;
}

/* Were ledgers kept, and does the output, or dq, hold what is due by them? */
static bool ledgers_are_right(const struct evidence *e, bool backward)
{
    const struct record *record = e->parallel;
    int members = layout_cp(&e->config->layout);
    bool right = true, any = false;
    int *due = memory_zalloc((size_t)(members * members + 1) * sizeof *due);
    int64_t batch = e->config->attention.batch;
    for (int r = 0; r < record->ranks; r++) {
        const int32_t *documents = e->context->inputs->documents;
        if (r % members == 0) consumption_due(e->config, documents ? documents + r / members * batch * e->config->model.seq : NULL, batch, true, due);
        for (int i = 0; i < record->rank[r].consumptions.count; i++) {
            const struct consumption_fact *f = &record->rank[r].consumptions.items[i];
            for (int c = 0; c < f->size && f->backward == backward; c++) right = right && f->times[c] == due[r % members * members + c];
            any = any || f->backward == backward;
        }
    }
    free(due);
    return any && right;
}

static bool any_wrong(const struct context_comparison *c)
{
    for (int i = 0; i < (c->ranks + c->groups + 1) * CONTEXT_TENSORS; i++) {
        if (c->items[i].known && c->items[i].wrong) return true;
    }
    return false;
}

struct context_inference context_infer_of(const struct evidence *e)
{
    const struct context_comparison *c = e->context->comparison, *fine = e->context->fine;
    const struct context_comparison *which = c && context_comparison_fails(c) ? c : fine ? fine : c;
    if (which == c && c && fine && !any_wrong(c) && context_comparison_fails(fine)) which = fine; /* what rounding leaves is no pattern */
    bool forward = which && (context_comparison_any(which, CONTEXT_OUT) || context_comparison_any(which, CONTEXT_LSE));
    struct context_inference inference = {.step = -1, .first_rank = -1};
    if (!which) return inference;
    if (forward) {
        int64_t *messages = memory_zalloc((size_t)(e->parallel->ranks + 1) * sizeof *messages);
        context_messages(e->parallel, messages);
        inference = context_infer(e->config, c, e->context->variations, messages, e->context->inputs->documents, ledgers_are_right(e, false));
        free(messages);
    } else {
        inference = context_infer_gradients(e->config, which, e->context->variations);
        if (inference.word && !strcmp(inference.word, "dq") && ledgers_are_right(e, true) && context_site("cp.dq")) {
            inference.site = context_site("cp.dq"); /* every block is in there: then it is what they are summed in */
            snprintf(inference.text, sizeof inference.text, "dq is wrong, dk and dv are right, and every block's part is in dq: the sum itself is rounded, or written to");
        }
    }
    context_refine(e, which, &inference);
    const struct site *chosen = context_comparison_fails(which) && !tells(inference.word) ? context_chosen_site(e->parallel, !forward) : NULL;
    if (chosen) {
        inference.site = chosen;
        if (!inference.word) inference.word = "chosen";
    }
    return inference;
}

/* Which of out, lse, dq, dk, dv differ, as words. */
static const char *tensors_wrong(const struct context_comparison *c, char text[96])
{
    size_t used = 0;
    text[0] = '\0';
    for (int t = 0; t < CONTEXT_TENSORS; t++) {
        if (context_comparison_any(c, (enum context_tensor)t)) used += (size_t)snprintf(text + used, 96 - used, "%s%s", used ? ", " : "", context_tensor_names[t]);
    }
    return text;
}

static void find_error(const struct evidence *e, struct check_output *output, const struct context_comparison *c, int rank, int group, enum context_tensor tensor,
                       const struct context_error *error, bool fine)
{
    struct context_inference inference = context_infer_of(e);
    bool forward = context_comparison_any(c, CONTEXT_OUT) || context_comparison_any(c, CONTEXT_LSE);
    bool follows = tensor > CONTEXT_LSE && forward; /* gradients of a wrong forward say nothing of where and whose it is */
    const struct site *site = inference.word && !follows ? inference.site : NULL;
    if (error->imprecise && !follows) site = context_site("cp.accumulate");
    struct finding finding = finding_new(site, context_place(e, rank));
    char wrong[96], where[96] = "", whose[64], of_head[24] = "";
    finding.expected = 0;
    finding.got = error->rel;
    if (error->worst_position >= 0) snprintf(where, sizeof where, ", worst at position %lld of sequence %lld", (long long)error->worst_position, (long long)error->worst_sequence);
    if (rank >= 0) snprintf(whose, sizeof whose, "rank %d's %s", rank, context_tensor_names[tensor]);
    else if (tensor == CONTEXT_SINKS) snprintf(whose, sizeof whose, "the ranks' d_sinks, summed,");
    else snprintf(whose, sizeof whose, "group %d's %s of the joint rows, summed,", group, context_tensor_names[tensor]);
    if (error->imprecise) {
        finding_pattern(&finding, "rounded");
        bool head = error->worst_head_rel / error->worst_head_limit > error->rel / error->limit;
        double rel = head ? error->worst_head_rel : error->rel;
        if (head) snprintf(of_head, sizeof of_head, " in head %d", error->worst_head);
        finding_say(&finding, "%s is off by %.3g%s, %.2f of the format's roundoff and more than the %.2f that rounding right numbers leaves: somewhere results are kept in 16 bits between blocks%s", whose, rel, of_head,
                    rel / c->roundoff, (head ? error->worst_head_limit : error->limit) / c->roundoff, where);
    } else {
        if (site) finding_pattern(&finding, inference.word);
        struct context_shape_of_errors shape = context_error_shape(c, tensor);
        finding_say(&finding, "%s%s differs from one rank's by %.3g (head %d: %.3g)%s; wrong are %s; over the ranks: %s%s%s", whose, fine ? ", made in fp64," : "", error->rel, error->worst_head,
                    error->worst_head_rel, where, tensors_wrong(c, wrong), shape.word, site ? ". " : "", site ? inference.text : "");
    }
    check_find(output, &finding);
}

static void look(const struct evidence *e, struct check_output *output, const struct context_comparison *c, bool fine)
{
    for (int t = 0; t < CONTEXT_TENSORS; t++) {
        for (int i = 0; i < c->ranks + c->groups + 1; i++) {
            const struct context_error *error = &c->items[i * CONTEXT_TENSORS + t];
            if (!error->known) continue;
            bool head = error->worst_head_rel / error->worst_head_limit > error->rel / error->limit;
            check_value(output, head ? error->worst_head_rel : error->rel, head ? error->worst_head_limit : error->limit);
            if (error->wrong || error->imprecise) find_error(e, output, c, i < c->ranks ? i : -1, i - c->ranks, (enum context_tensor)t, error, fine);
        }
    }
}

/* One rank alone is the measure of what rounding does; it must not be off by far itself. */
static void look_at_single(const struct evidence *e, struct check_output *output)
{
    const struct context_comparison *c = e->context->comparison;
    for (int t = 0; t < CONTEXT_SINKS; t++) {
        const struct context_error *error = context_error_of(c, 0, (enum context_tensor)t);
        double most = context_single_most(e->config);
        if (!error->known || isnan(error->single) || error->single <= most) continue;
        struct finding finding = finding_new(context_site("cp.softmax_scale"), context_place(e, 0));
        finding_pattern(&finding, "alone-too");
        finding_say(&finding, "one rank alone, without any split, is off by %.3g in %s: the attention itself is wrong here, or this format cannot carry it", error->single, context_tensor_names[t]);
        check_value(output, error->single, most);
        check_find(output, &finding);
    }
}

void context_oracle(const struct evidence *e, struct check_output *output)
{
    if (!e->context->comparison) {
        check_skip(output, "the run did not finish");
        return;
    }
    check_value(output, 0, 1e-12);
    look_at_single(e, output);
    look(e, output, e->context->comparison, false);
    if (e->context->fine && !context_comparison_fails(e->context->comparison)) look(e, output, e->context->fine, true);
}

/* ---- poison ---- */

void context_poison(const struct evidence *e, struct check_output *output)
{
    struct context_inference inference = {.word = NULL};
    check_value(output, 0, 0);
    if (e->context->comparison) inference = context_infer_of(e);
    for (int r = 0; r < e->parallel->ranks; r++) {
        const struct rank_record *rank = &e->parallel->rank[r];
        const struct attention_part *p = rank->attention;
        for (int i = 0; i < rank->poisons.count; i++) {
            struct finding finding = finding_new(rank->poisons.items[i].site, context_place(e, r));
            finding_pattern(&finding, "not-arrived");
            finding_say(&finding, "rank %d: %s", r, rank->poisons.items[i].what);
            check_value(output, 1, 0);
            check_find(output, &finding);
        }
        if (!p) continue;
        int64_t rows = p->batch * p->rows, wide = e->config->model.heads * (int64_t)e->config->model.head_dim, narrow = e->config->model.kv_heads * (int64_t)e->config->model.head_dim;
        const struct { const double *data; int64_t count; const char *name; bool gradient; } parts[] = {
            {p->out, rows * wide, "out", false}, {p->dq, rows * wide, "dq", true}, {p->dk, rows * narrow, "dk", true}, {p->dv, rows * narrow, "dv", true}};
        for (int i = 0; i < 4; i++) {
            int64_t bad = 0, first = -1, width = i < 2 ? wide : narrow;
            for (int64_t j = 0; parts[i].data && j < parts[i].count; j++) {
                if (isfinite(parts[i].data[j])) continue;
                if (bad++ == 0) first = j;
            }
            check_value(output, (double)bad, 0);
            if (bad == 0) continue;
            struct finding finding = finding_new(context_moves(e->config, parts[i].gradient), context_place(e, r));
            bool told = inference.word && (!parts[i].gradient || context_comparison_any(e->context->comparison, CONTEXT_OUT));
            if (told) finding.site = inference.site;
            finding_pattern(&finding, told ? inference.word : "not-finite");
            finding_say(&finding, "%lld numbers of rank %d's %s are not finite, the first at position %d: memory was read that nothing had been written to, or an exponential ran over", (long long)bad, r,
                        parts[i].name, p->positions[first / width]);
            check_find(output, &finding);
        }
    }
}
