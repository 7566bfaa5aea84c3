/* balance: the router's side of a micro-batch and of a step.
 *
 * Selection bias (balance noaux_tc): a layer's buffer [experts] in the run's storage, fp32 at least, 0 at first. The tokens
 * that each expert was chosen for, padding left out, add up over the micro-batches of a step; then, once a step, they are
 * summed over the data ranks (dp x cp), and over tp where each has a slice of the tokens (one all-reduce for the layers of a stage, site ep.count_reduce), and
 *   bias[e] += bias_update_rate * sign(mean of the counts - count[e])
 * also in a step whose update loss scaling leaves out, as Megatron-LM has it (finalize_model_grads: after the gradients'
 * last reduction). Every data rank computes the same, so copies stay equal.
 *
 * Auxiliary losses: a cell's (model/routing.h) gradient is multiplied by what would be due if its value were the mean
 * loss of its tokens:  seed * n, n its valid tokens, where the convention divides by n; seed * T, T its tokens that are not
 * padding, where it divides by something else. megatron: 1/M, times 1/D by the gradients' mean; megatron_per_token: T,
 * divided by N in the end. Letters come from the data, so that every stage has them.
 *
 * Source: Megatron-LM core/distributed/finalize_model_grads.py, core/transformer/moe/router.py; Wang et al. 2024. */
#include "model/balance.h"

#include <stdio.h>
#include <string.h>

#include "model/choices.h"
#include "model/loss_convention.h"

/* Of a whole run, in 8 bytes each at most: its ranks share it. */
enum { NOTED_NUMBERS = 1 << 24 };

static bool has_experts(const struct program *p, const struct unit *unit)
{
    const struct model_config *model = &p->run->config->model;
    return !unit->part && unit->index >= 1 && unit->index <= model->layers && model_layer_has_experts(model, unit->index - 1);
}

void balance_begin(struct program *p)
{
    const struct moe_config *moe = &p->run->config->model.moe;
    p->record->routing_left = NOTED_NUMBERS / p->run->record->ranks;
    p->balance = arena_zalloc(p->context.arena, (size_t)(p->units_count + 1) * sizeof *p->balance);
    for (int i = 0; i < p->units_count; i++) {
        if (moe->balance != MOE_BALANCE_NOAUX_TC || !has_experts(p, &p->units[i])) continue;
        p->balance[i].bias = arena_zalloc(p->context.arena, (size_t)moe->experts * sizeof(double));
        p->balance[i].counts = arena_zalloc(p->context.arena, (size_t)moe->experts * sizeof(double));
    }
}

/* ---- a micro-batch ---- */

/* Its sequences by the cut's micro-batches. */
static void find_cells(struct program *p, struct microbatch *mb)
{
    const struct run_config *config = p->run->config;
    int per = layout_sequences_per_microbatch(config), seq = (int)program_slice_seq(p), whole = (int)p->seq, first = seq < whole ? seq * p->record->tp : 0;
    mb->cell_first = arena_zalloc(mb->arena, (size_t)(per + 1) * sizeof *mb->cell_first);
    mb->aux_scale = arena_zalloc(mb->arena, (size_t)per * sizeof *mb->aux_scale);
    mb->padding = arena_alloc(mb->arena, (size_t)(per * seq) * sizeof *mb->padding);
    for (int i = 0, last = -1; i < per; i++) {
        int cell = loss_cut_batch(config, mb->first_sequence + i);
        if (cell != last) {
            mb->aux_scale[mb->cells] = loss_auxiliary_seed(p->run->record, p->step, cell) * p->loss_scale;
            mb->cell_first[mb->cells++] = (int64_t)i * seq;
        }
        last = cell;
    }
    mb->cell_first[mb->cells] = (int64_t)per * seq;
    for (int t = 0; t < per * seq; t++) mb->padding[t] = mb->documents[t / seq * whole + first + t % seq] == DOCUMENT_PADDING;
}

/* Who has which tokens of its sequences. */
static void find_members(struct program *p, struct microbatch *mb)
{
    const struct run_config *config = p->run->config;
    const struct layout *layout = &config->layout;
    int cp = layout_cp(layout), tp = layout_slices_sequences(layout) ? layout->tp : 1, per = layout_sequences_per_microbatch(config), seq = config->model.seq;
    if (!p->tokens.group) return;
    int64_t *rows = arena_alloc(mb->arena, (size_t)(cp * tp) * sizeof *rows);
    const int32_t **members = arena_alloc(mb->arena, (size_t)(cp * tp) * sizeof *members);
    int32_t *whole = arena_alloc(mb->arena, (size_t)(seq + 1) * sizeof *whole);
    for (int c = 0; c < cp; c++) {
        int64_t of_cp = p->context_layout ? context_layout_rows(p->context_layout, seq, cp, c) : seq, each = of_cp / tp;
        for (int t = 0; t < tp; t++) {
            int32_t *positions = arena_alloc(mb->arena, (size_t)(per * each + 1) * sizeof *positions);
            rows[c * tp + t] = each;
            members[c * tp + t] = positions;
            for (int i = 0; i < per; i++) {
                for (int32_t k = 0; k < of_cp; k++) whole[k] = k;
                if (p->context_layout) p->context_layout->positions(seq, cp, c, config->model.document_mask ? mb->whole_documents + (int64_t)i * seq : NULL, whole);
                memcpy(positions + i * each, whole + t * each, (size_t)each * sizeof *positions);
            }
        }
    }
    mb->tokens_of = (struct token_slices){p->communicator, p->tokens.group, seq, rows, members};
}

static struct routing_fact *fact_of(struct program *p, int microbatch, const struct unit *unit)
{
    for (int i = p->record->routings.count - 1; i >= 0; i--) {
        struct routing_fact *fact = &p->record->routings.items[i];
        if (fact->step == p->step && fact->microbatch == microbatch && fact->unit == unit->index) return fact;
    }
    return NULL;
}

/* As long as there is memory for it, everything is noted; then sums alone. */
static void begin_fact(struct program *p, const struct microbatch *mb, const struct unit *unit, int microbatch)
{
    const struct run_config *config = p->run->config;
    const struct moe_config *moe = &config->model.moe;
    int64_t tokens = layout_sequences_per_microbatch(config) * program_slice_seq(p);
    int dispatched = layout_ep(&config->layout) > 1 ? DISPATCH_STAGES + 2 : 0;
    int64_t numbers = tokens * (2 * moe->experts + (8 + dispatched) * moe->top_k + 4);
    p->routing_fact = (struct routing_fact){.step = p->step, .microbatch = microbatch, .unit = unit->index,
                                            .first_sequence = (int)mb->first_sequence, .whole = numbers <= p->record->routing_left,
                                            .positions = program_facts_positions(p, mb->slice_positions)};
    if (p->routing_fact.whole) p->record->routing_left -= numbers;
    p->router.fact = &p->routing_fact;
}

static void note_counts(struct program *p, const struct balance *own, bool after)
{
    int experts = p->run->config->model.moe.experts;
    int64_t *counted = after ? (int64_t *)p->routing_fact.counted : arena_alloc(p->record->arena, (size_t)experts * sizeof *counted);
    for (int e = 0; e < experts; e++) counted[e] = (int64_t)own->counts[e] - (after ? counted[e] : 0);
    p->routing_fact.counted = counted;
}

/* The choices of the run that this one is held against. */
static void follow(struct program *p, const struct microbatch *mb, const struct unit *unit)
{
    const struct routing_choices *other = p->run->options->follow;
    const struct run_config *config = p->run->config;
    if (!other) return;
    size_t at = (size_t)p->step * (size_t)other->units + (size_t)unit->index;
    int64_t first = (int64_t)mb->first_sequence * config->model.seq * config->model.moe.top_k;
    p->router.near_tie = other->near_tie;
    p->router.follow_chosen = other->chosen[at] ? other->chosen[at] + first : NULL;
    p->router.follow_kept = other->kept && other->kept[at] ? other->kept[at] + first : NULL;
    p->router.follow_own = other->own[at] ? other->own[at] + first : NULL;
}

const struct router_run *balance_enter(struct program *p, struct microbatch *mb, const struct unit *unit, int microbatch, bool backward)
{
    const struct balance *own = &p->balance[unit - p->units];
    if (!has_experts(p, unit)) return NULL;
    if (!mb->cell_first) {
        find_cells(p, mb);
        find_members(p, mb);
    }
    p->router = (struct router_run){.bias = own->bias, .counts = backward ? NULL : own->counts /* a recomputation does not count again */, .cells = mb->cells, .cell_first = mb->cell_first,
        .aux_scale = mb->aux_scale, .padding = mb->padding, .numbers = &p->numbers, .fact_arena = p->record->arena};
    follow(p, mb, unit);
    if (backward) {
        p->router.fact = fact_of(p, microbatch, unit);
    } else {
        begin_fact(p, mb, unit, microbatch);
        if (own->counts) note_counts(p, own, false);
    }
    return &p->router;
}

double *balance_counted_again(struct program *p, const struct unit *unit, struct where where)
{
    double *counts = p->balance[unit - p->units].counts;
    return counts && choice_site(p->run->plan, p->record, &site_moe_count_again, where, unit->index, false) ? counts : NULL;
}

void balance_leave(struct program *p, const struct unit *unit)
{
    if (!has_experts(p, unit)) return;
    if (p->balance[unit - p->units].counts) note_counts(p, &p->balance[unit - p->units], true);
    record_push(p->record, routings, p->routing_fact);
}

/* ---- a step ---- */

static const double *copy(struct program *p, const double *values, int count)
{
    double *to = arena_alloc(p->record->arena, (size_t)count * sizeof *to);
    memcpy(to, values, (size_t)count * sizeof *to);
    return to;
}

static void move_bias(struct program *p, const struct unit *unit, struct balance *own, const double *summed)
{
    const struct moe_config *moe = &p->run->config->model.moe;
    struct where where = program_where(p, -1, unit->index);
    struct balance_fact fact = {.step = p->step, .unit = unit->index, .experts = moe->experts,
        .counted = copy(p, own->counts, moe->experts), .summed = copy(p, summed, moe->experts), .before = copy(p, own->bias, moe->experts)};
    double mean = 0;
    for (int e = 0; e < moe->experts; e++) mean += summed[e];
    mean /= moe->experts;
    fact.updates = decision_site(p->run->plan, &site_moe_update_bias, where, true, true);
    for (int e = 0; e < moe->experts && fact.updates; e++)
        own->bias[e] = format_round(p->run->ops->storage, own->bias[e] + moe->bias_update_rate * ((mean > summed[e]) - (mean < summed[e])));
    tensor_site(p->run->plan, &site_moe_bias, where, tensor_1d(own->bias, FORMAT_FP64, moe->experts));
    fact.after = copy(p, own->bias, moe->experts);
    record_push(p->record, balances, fact);
    memset(own->counts, 0, (size_t)moe->experts * sizeof *own->counts);
}

void balance_update(struct program *p)
{
    int experts = p->run->config->model.moe.experts, layers = 0;
    for (int i = 0; i < p->units_count; i++) layers += p->balance[i].counts != NULL;
    if (layers == 0) return;
    struct arena_mark mark = arena_mark(p->scratch);
    double *summed = arena_alloc(p->scratch, (size_t)(layers * experts) * sizeof *summed), *at = summed;
    for (int i = 0; i < p->units_count; i++) {
        if (!p->balance[i].counts) continue;
        memcpy(at, p->balance[i].counts, (size_t)experts * sizeof *at);
        at += experts;
    }
    struct comm how = {.site = &site_ep_count_reduce, .where = program_where(p, -1, -1)};
    all_reduce(p->communicator, p->counting, &how, (struct buffer){summed, (size_t)(layers * experts), FORMAT_FP64, FORMAT_FP64, NULL}, REDUCE_SUM);
    at = summed;
    for (int i = 0; i < p->units_count; i++) {
        if (!p->balance[i].counts) continue;
        move_bias(p, &p->units[i], &p->balance[i], at);
        at += experts;
    }
    arena_release(p->scratch, mark);
}

/* ---- experts without rows ---- */

static int64_t rows_of_step(const struct program *p, const struct unit *unit, int expert)
{
    int64_t rows = 0;
    int boundary = unit_boundary(&p->run->config->model, unit->index);
    for (int i = p->record->routings.count - 1; i >= 0 && p->record->routings.items[i].step == p->step; i--) {
        const struct routing_fact *fact = &p->record->routings.items[i];
        rows += fact->unit == boundary && expert < fact->experts ? fact->computed[expert] : 0;
    }
    return rows;
}

bool balance_passes_over(struct program *p, const struct unit *unit, const char *param, struct where where)
{
    int expert;
    const char *name = strstr(param, ".moe.experts.");
    if (!p->run->plan || !name || sscanf(name, ".moe.experts.%d.", &expert) != 1 || rows_of_step(p, unit, expert) > 0) return false;
    return !decision_site(p->run->plan, &site_moe_empty_expert, where, true, true);
}
