/* context_due: see the header. The rule, not the program: model/context/.
 *
 * Of one layer and micro-batch, R the members of the ring (ring: cp; usp: cp / ulysses):
 *   ring, usp         forward   2 (R - 1) hops of K and V                 backward   2 (R - 1) of them, 2 R of dK and dV, 0 where R = 1
 *                                                                                    (reversed: 2 (R - 1))
 *   all_gather        forward   2 gathers                                 backward   2 gathers, 2 reduce-scatters
 *   ulysses, usp      forward   3 all-to-alls there, 1 back               backward   1 there, 3 back (of a group of one too)
 * Attention that is computed again in the backward (recompute full or selective) makes its forward's calls again. */
#include "scenarios/context_due.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/precision.h"
#include "model/sites.h"
#include "scenarios/facts.h"
#include "scenarios/variations.h"

struct sizes { int ring; bool splits /* heads */, gathers; };

static struct sizes sizes_of(const struct layout *layout)
{
    const struct context_config *context = &layout->context;
    int cp = layout_cp(layout);
    if (!strcmp(context->method, "all_gather")) return (struct sizes){1, false, true};
    if (!strcmp(context->method, "ulysses")) return (struct sizes){1, true, false};
    if (!strcmp(context->method, "usp")) return (struct sizes){cp / context->ulysses, true, false};
    if (context->method[0] && strcmp(context->method, "ring") != 0) return (struct sizes){1, false, false}; /* a plug-in's: its calls are its own */
    return (struct sizes){cp, false, false};
}

bool context_calls_of(const struct layout *layout, const struct site *site, int64_t *forward, int64_t *backward)
{
    struct sizes sizes = sizes_of(layout);
    bool turns = sizes.ring > 1;
    *forward = *backward = 0;
    if (site == &site_cp_kv_hop) *forward = *backward = 2 * (sizes.ring - 1);
    else if (site == &site_cp_dkv_hop) *backward = turns ? 2 * (sizes.ring - layout->context.reversed) : 0;
    else if (site == &site_cp_kv_gather) *forward = *backward = 2 * sizes.gathers;
    else if (site == &site_cp_kv_grad_scatter) *backward = 2 * sizes.gathers;
    else if (site == &site_cp_seq_to_head) *forward = 3 * sizes.splits, *backward = sizes.splits;
    else if (site == &site_cp_head_to_seq) *forward = sizes.splits, *backward = 3 * sizes.splits;
    else return false;
    return true;
}

int64_t context_calls_due(const struct record *record, const struct rank_record *rank, const struct site *site)
{
    const struct layout *layout = &record->config.layout;
    int64_t forward, backward, layers = layout->layers_per_stage[rank->stage] * (int64_t)record->config.train.steps * layout->microbatches;
    if (!context_calls_of(layout, site, &forward, &backward)) return -1;
    if (layout_cp(layout) == 1) return 0;
    bool again = layout->recompute.mode != RECOMPUTE_NONE;
    return layers * ((again ? 2 : 1) * forward + backward);
}

bool context_call_due(const struct run_config *config, const struct site *site, struct call_due *ret)
{
    bool usp = !strcmp(config->layout.context.method, "usp");
    const char *heads = usp ? "ulysses" : "cp";
    const struct call_due table[] = {
        {&site_cp_kv_gather, "all_gather", NULL, "cp", NULL},
        {&site_cp_kv_grad_scatter, "reduce_scatter", "sum", "cp", NULL},
        {&site_cp_seq_to_head, "all_to_all", NULL, heads, NULL},
        {&site_cp_head_to_seq, "all_to_all", NULL, heads, NULL},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].site != site) continue;
        *ret = table[i];
        return true;
    }
    return false;
}

const struct site *context_calls_decision(const struct record *record, const struct rank_record *rank, const struct site *site)
{
    static const struct site *const decisions[] = {&site_cp_rotate, &site_cp_dkv_home};
    bool hops = site == &site_cp_kv_hop || site == &site_cp_dkv_hop;
    for (int step = 0; hops && step < record->config.train.steps; step++) {
        for (size_t i = 0; i < sizeof decisions / sizeof decisions[0]; i++) {
            if (facts_was_chosen(rank, decisions[i], step, -1)) return decisions[i];
        }
    }
    return NULL;
}

static void earliest(const struct site *site, int rank, const struct site **first, int *ret_rank)
{
    if (*first && model_site_order(*first) <= model_site_order(site)) return;
    *first = site;
    *ret_rank = rank;
}

bool context_is_other_scale(const struct record *record, const struct factor_fact *fact)
{
    return fact->site == &site_cp_softmax_scale && fact->value != 1 / sqrt((double)record->config.model.head_dim);
}

const struct site *context_decision(const struct record *record, int step, int unit, int *ret_rank)
{
    const struct site *first = NULL;
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].factors.count; i++) {
            const struct factor_fact *fact = &record->rank[r].factors.items[i];
            if (context_is_other_scale(record, fact) && fact->step == step && fact->unit == unit) earliest(fact->site, r, &first, ret_rank);
        }
        for (int i = 0; i < record->rank[r].choices.count; i++) {
            const struct choice_fact *fact = &record->rank[r].choices.items[i];
            if (fact->step != step || fact->unit != unit || fact->count == fact->whole || strncmp(fact->site->name, "cp.", 3) != 0) continue;
            earliest(fact->site, r, &first, ret_rank);
        }
    }
    return first;
}

/* ---- the split attention itself ---- */

bool context_is_split_attention(const struct record *record, const struct site *noted)
{
    return noted == &site_attention_mask && layout_cp(&record->config.layout) > 1;
}

static const struct record *as_it_is(const struct variations *variations, bool standalone)
{
    struct variation of = {.standalone = standalone};
    const struct variation *base = variations_base(variations, &of);
    return base && facts_finished(base->record) ? base->record : NULL;
}

/* Every row of it, of whichever rank, has the bits of the whole sequence's. */
static bool rows_are_those_of(const struct rows_fact *part, const struct rows_fact *whole)
{
    for (int i = 0; i < part->count; i++) {
        int position = rows_fact_position(part, i);
        if (position < 0 || position >= whole->count || part->row[i] != whole->row[position]) return false;
    }
    return true;
}

bool context_attention_differs_first(const struct evidence *e, int unit, int sequence, double *ret_by)
{
    const struct record *parallel = e->variations ? as_it_is(e->variations, false) : NULL, *single = e->variations ? as_it_is(e->variations, true) : NULL;
    if (!parallel || !single || layout_cp(&parallel->config.layout) == 1 || parallel->config.layout.tp > 1) return false;
    struct rows_table parts = rows_table_new(parallel), wholes = rows_table_new(single);
    double squares = 0, due = 0;
    bool equal = true;
    int inputs = 0, outputs = 0;
    for (int i = 0; i < parts.count && equal; i++) {
        const struct rows_fact *part = parts.entries[i].fact;
        if (part->sequence != sequence || part->unit != unit || (part->site != &site_attention_qkv && part->site != &site_attention_mask)) continue;
        struct rows_fact like = *part;
        like.cp = 0;
        const struct rows_fact *whole = rows_table_find(&wholes, &like).fact;
        equal = whole != NULL && (part->site == &site_attention_mask || rows_are_those_of(part, whole));
        if (part->site == &site_attention_qkv) inputs++;
        else if (equal) {
            outputs++;
            squares += part->value[4];
            due = whole->value[4];
        }
    }
    free(parts.entries);
    free(wholes.entries);
    *ret_by = fabs(squares - due) / fmax(due, 1e-300);
    return equal && inputs > 0 && outputs == layout_cp(&parallel->config.layout) && !(*ret_by <= 64 * precision_roundoff(&parallel->config.precision));
}
