/* conservation: every chosen (token, expert) pair goes out once and comes back once.
 *
 *   room    which pairs a full expert keeps: as many as its capacity, and by the declared policy
 *   rows    every kept pair has exactly one row, a dropped one none; rows are in the order of experts, whose first rows are
 *           the sums of the counts before them, without gap or overlap, also where they meet the experts' weights
 *   back    as many results come back for a pair as rows went out (row-identity: which)
 *   sum     what a token gets is the sum of its rows' results times their weights: by tags (model/routing.h), within two roundings
 *           of the narrowest format for each number that is multiplied, added or stored, relative to the magnitudes, and its smallest
 *           number an element
 *   shared  what the layer adds is that sum and the shared expert's output, each once
 *   there   with expert parallelism: what went out arrives at the experts' ranks, and comes home (conservation_dispatch.c)
 * Limit: exact but for the sum. Sites: moe.capacity_top_k where the number kept is another one, moe.drop_policy where others are
 * kept, moe.locations where a kept pair has no row, moe.expert_rows, moe.unpermute, moe.combine. */
#include <math.h>
#include <stdlib.h>

#include "model/precision.h"
#include "model/sites.h"
#include "scenarios/conservation_dispatch.h"
#include "scenarios/facts.h"
#include "scenarios/routing_due.h"

/* ---- room ---- */

static bool check_number(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact, int cell)
{
    const struct moe_config *moe = &e->config->model.moe;
    int64_t room = routing_capacity(moe, fact, cell);
    for (int expert = 0; expert < fact->experts; expert++) {
        int64_t wanted = 0, kept = 0;
        for (int64_t i = fact->cell_first[cell] * fact->top_k; i < fact->cell_first[cell + 1] * fact->top_k; i++) {
            wanted += fact->chosen[i] == expert;
            kept += fact->chosen[i] == expert && fact->kept[i];
        }
        int64_t due = wanted < room ? wanted : room;
        check_value(output, (double)llabs(kept - due), 0);
        if (kept == due) continue;
        routing_find(e, output, &site_moe_capacity_top_k, rank, fact, "capacity", (double)due, (double)kept,
                     "expert %d keeps %lld of %lld tokens; its capacity is %lld", expert, (long long)kept, (long long)wanted, (long long)room);
        return false;
    }
    return true;
}

/* Of a whole micro-batch: its tokens share the room. */
static bool keeps_by_choice(const struct moe_config *moe, const struct routing_fact *fact)
{
    int64_t pairs = fact->tokens * fact->top_k;
    bool *kept = calloc((size_t)pairs + 1, sizeof *kept), same = true;
    routing_kept_by_choice(moe, fact, kept);
    for (int64_t i = 0; i < pairs; i++) same = same && kept[i] == fact->kept[i];
    free(kept);
    return same;
}

static void check_room(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact, const bool *padding)
{
    const struct moe_config *moe = &e->config->model.moe;
    int64_t pairs = fact->tokens * fact->top_k;
    (void)padding;
    if (!fact->whole) return;
    for (int c = 0; c < fact->cells; c++) {
        if (!check_number(e, output, rank, fact, c)) return;
    }
    if (moe->capacity_factor <= 0) return;
    bool *due = calloc((size_t)pairs + 1, sizeof *due), *first = calloc((size_t)pairs + 1, sizeof *first), all_first = true;
    routing_kept(moe, fact, moe->drop, due);
    routing_kept(moe, fact, MOE_DROP_POSITION, first);
    int64_t wrong = -1;
    for (int64_t i = pairs - 1; i >= 0; i--) {
        all_first = all_first && first[i] == fact->kept[i];
        if (due[i] != fact->kept[i]) wrong = i;
    }
    for (int64_t t = 0; fact->followed && t < fact->tokens; t++) {
        if (fact->followed[t] & FOLLOWED_ROOM) wrong = -1; /* the reference alone: scenarios/routing_follow.h */
    }
    if (wrong >= 0) {
        bool by_choice = !all_first && keeps_by_choice(moe, fact);
        check_value(output, 1, 0);
        routing_find(e, output, by_choice ? &site_moe_slot_order : &site_moe_drop_policy, rank, fact, by_choice ? "choices-first" : all_first ? "position" : "other-pairs",
                     due[wrong], fact->kept[wrong], "expert %d %s token %lld%s", fact->chosen[wrong], fact->kept[wrong] ? "keeps" : "drops",
                     (long long)(wrong / fact->top_k), by_choice ? ": experts keep those of which they are the first choice, before those of which they are the second"
                     : all_first ? ": it keeps its first tokens, whatever their weight" : "");
    }
    free(first);
    free(due);
}

/* ---- rows ---- */

static void check_rows(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact)
{
    int64_t pairs = fact->tokens * fact->top_k;
    int *out = calloc((size_t)pairs + 1, sizeof *out), *back = calloc((size_t)pairs + 1, sizeof *back);
    for (int64_t i = 0; i < fact->rows; i++) {
        out[fact->slot[i]]++;
        back[fact->back[i]]++;
    }
    for (int64_t i = 0; i < pairs; i++) {
        check_value(output, out[i] != fact->kept[i], 0);
        if (out[i] == fact->kept[i]) continue;
        routing_find(e, output, &site_moe_locations, rank, fact, out[i] ? "extra" : "lost", fact->kept[i], out[i], "choice %d of token %lld has %d rows where %d %s due",
                     (int)(i % fact->top_k), (long long)(i / fact->top_k), out[i], fact->kept[i], fact->kept[i] ? "is" : "are");
        break;
    }
    for (int64_t i = 0; i < pairs; i++) {
        check_value(output, back[i] != out[i], 0);
        if (back[i] == out[i]) continue;
        routing_find(e, output, &site_moe_unpermute, rank, fact, "wrong-inverse", out[i], back[i], "choice %d of token %lld gets %d results for %d rows",
                     (int)(i % fact->top_k), (long long)(i / fact->top_k), back[i], out[i]);
        break;
    }
    free(back);
    free(out);
}

static void check_offsets(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact)
{
    for (int expert = 0; expert <= fact->experts; expert++) {
        int64_t before = 0;
        for (int64_t i = 0; i < fact->rows; i++) before += fact->chosen[fact->slot[i]] < expert;
        check_value(output, (double)llabs(fact->bounds[expert] - before), 0);
        if (fact->bounds[expert] == before) continue;
        routing_find(e, output, &site_moe_expert_rows, rank, fact, "offset", (double)before, (double)fact->bounds[expert],
                     "expert %d begins with row %lld where the experts before it have %lld", expert, (long long)fact->bounds[expert], (long long)before);
        return;
    }
}

static void check_sum(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact)
{
    double *sum = calloc((size_t)fact->tokens + 1, sizeof *sum), *size = calloc((size_t)fact->tokens + 1, sizeof *size);
    const struct precision *precision = &e->parallel->config.precision;
    double limit = 4 * (fact->top_k + 4) * precision_roundoff(precision) + 2 * e->config->model.dim * ldexp(1, -53);
    double underflow = (double)e->config->model.dim * precision_smallest(precision); /* half of it an element, times at most 2 */
    for (int64_t i = 0; i < fact->rows; i++) {
        sum[fact->back[i] / fact->top_k] += fact->weight[fact->back[i]] * fact->out[i];
        size[fact->back[i] / fact->top_k] += fabs(fact->weight[fact->back[i]]) * fact->out_size[i];
    }
    for (int64_t t = fact->seen_first; t < fact->seen_first + fact->seen_tokens; t++) {
        if (!isfinite(fact->routed[t]) && !(size[t] < format_traits[precision_activation(precision)].largest)) continue;
        double by = fabs(fact->routed[t] - sum[t]) / fmax(size[t] + underflow / limit, 1e-30);
        bool equal = by <= limit || (isnan(sum[t]) && isnan(fact->routed[t]));
        check_value(output, equal && isnan(by) ? 0 : by, limit);
        if (equal) continue;
        bool again = fact->dispatch.members > 0 && dispatch_is_summed_again(e, rank, fact, t);
        routing_find(e, output, again ? &site_ep_output_complete : &site_moe_combine, rank, fact, again ? "times-ranks" : "altered", sum[t], fact->routed[t],
                     "what token %lld gets of its experts is not the sum of their results times their weights, by %.3g%s", (long long)t, by,
                     again ? ": it is added up over the ranks again" : "");
        break;
    }
    free(size);
    free(sum);
}

/* What a layer adds: the experts' sum and the shared expert's output, each once. */
static void check_shared(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact)
{
    double limit = 1024 * precision_roundoff(&e->parallel->config.precision);
    double underflow = (double)e->config->model.dim * precision_smallest(&e->parallel->config.precision);
    for (int64_t t = 0; fact->shared && fact->added && t < fact->tokens; t++) {
        double most = fact->routed_size[t] + fact->shared_size[t] + underflow / limit;
        double due = fact->routed[t] + fact->shared[t], got = fact->added[t], by = fabs(got - due) / fmax(most, 1e-300);
        bool equal = by <= limit || isnan(due);
        check_value(output, equal && isnan(by) ? 0 : by, limit);
        if (equal) continue;
        int ranks = fact->dispatch.members;
        bool often = ranks > 1 && fabs(got - due - (ranks - 1) * fact->shared[t]) <= limit * ranks * most;
        routing_find(e, output, often ? &site_ep_shared_once : &site_moe_combine, rank, fact, often ? "times-ranks" : "altered", due, got,
                     "what token %lld gets of all experts is not the others' and the shared one's output, by %.3g%s", (long long)t, by,
                     often ? ": the shared one counts as often as there are expert-parallel ranks" : "");
        return;
    }
}

static void visit(const struct evidence *e, struct check_output *output, const struct rank_record *rank, const struct routing_fact *fact,
                  const bool *padding)
{
    if (!fact->whole) return;
    check_rows(e, output, rank, fact);
    check_offsets(e, output, rank, fact);
    check_sum(e, output, rank, fact);
    check_shared(e, output, rank, fact);
    conservation_dispatch(e, output, rank, fact);
}

static void run(const struct evidence *e, struct check_output *output)
{
    if (e->config->model.moe.experts == 0) {
        check_skip(output, "the model has no experts");
        return;
    }
    if (!routing_is_noted(e->parallel)) {
        check_skip(output, "the record has no room for what the routers chose for so many tokens");
        return;
    }
    check_value(output, 0, 0);
    routing_each_whole(e, output, check_room);
    routing_each(e, output, visit);
}

const struct check check_conservation = {
    .id = "conservation",
    .proves = "every chosen (token, expert) pair that finds room goes out once and comes back once: who is dropped, the rows of each expert "
              "without gap or overlap, the way back, the weighed sum",
    .tier = "default",
    .run = run,
};
