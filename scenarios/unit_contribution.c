/* unit_contribution: sums over ledgers. */
#include "scenarios/unit_contribution.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/reduction_sums.h"
#include "sim/arena.h"

/* The use of unit 0's parameter that this rank's own backward adds, where the two uses are on two stages. */
static int own_part(const struct record *record, const struct rank_record *rank, int unit)
{
    return unit == 0 && record->config.model.tie_embeddings && rank->stage > 0 ? 1 : 0;
}

static bool parts_are_apart(const struct record *record, int unit)
{
    return unit == 0 && record->config.model.tie_embeddings && record->config.layout.pp > 1;
}

static void add_local(const struct record *record, struct unit_contribution *u, const struct rank_record *rank)
{
    int D = layout_data_ranks(&record->config.layout), M = record->config.layout.microbatches;
    for (int i = 0; i < rank->gradients.count; i++) {
        const struct gradient_fact *fact = &rank->gradients.items[i];
        if (fact->unit != u->unit) continue;
        if (fact->step == u->step - 1 && fact->stage == GRADIENT_UNREDUCED && rank == u->rank) u->left_behind = true;
        if (fact->step != u->step || fact->stage == GRADIENT_REDUCED || fact->stage == GRADIENT_SCATTERED) continue;
        for (int t = 0; t < fact->ledger.count; t++) {
            const struct ledger_term *term = &fact->ledger.terms[t];
            bool of_step = term->origin.step == u->step;
            if (!of_step && rank == u->rank) {
                u->local_earlier += term->times;
                u->earlier_step = term->origin.step;
            }
            int d = term->origin.rank, m = term->origin.microbatch;
            if (!of_step || d < 0 || d >= D || m < 0 || m >= M) continue;
            if (fact->stage == GRADIENT_LOCAL) u->local[d * M + m] += term->times;
            else if (rank == u->rank && facts_is_source(record, rank, u->unit, d)) u->unreduced[d * M + m] += term->times;
        }
    }
}

static void add_reduced(const struct record *record, struct unit_contribution *u)
{
    int D = layout_data_ranks(&record->config.layout), M = record->config.layout.microbatches;
    bool apart = parts_are_apart(record, u->unit);
    for (int i = 0; i < u->rank->gradients.count; i++) {
        const struct gradient_fact *fact = &u->rank->gradients.items[i];
        if (fact->unit != u->unit || fact->step != u->step || fact->stage != GRADIENT_REDUCED) continue;
        u->has_reduced = true;
        u->fact = fact;
        for (int t = 0; t < fact->ledger.count; t++) {
            const struct ledger_term *term = &fact->ledger.terms[t];
            int d = term->origin.rank, m = term->origin.microbatch;
            bool own = !apart || term->origin.part == own_part(record, u->rank, u->unit);
            if (term->origin.step != u->step) {
                if (own) u->reduced_earlier += term->times;
                if (own) u->earlier_step = term->origin.step;
                continue;
            }
            u->uses_reduced[term->origin.part != 0] += term->times;
            if (own && d >= 0 && d < D && m >= 0 && m < M) u->reduced[d * M + m] += term->times;
        }
    }
}

bool unit_contribution_has_backward(const struct unit_contribution *u)
{
    for (int i = 0; i < u->rank->syncs.count; i++) {
        if (u->rank->syncs.items[i].step == u->step && u->rank->syncs.items[i].unit == u->unit) return true;
    }
    return false;
}

bool unit_contribution_read(const struct record *record, int rank, int step, int unit, struct unit_contribution *ret)
{
    size_t cells = (size_t)(layout_data_ranks(&record->config.layout) * record->config.layout.microbatches);
    *ret = (struct unit_contribution){.rank = &record->rank[rank], .step = step, .unit = unit, .earlier_step = -1};
    bool has = unit_contribution_has_backward(ret);
    for (int i = 0; !has && i < ret->rank->gradients.count; i++) {
        has = ret->rank->gradients.items[i].step == step && ret->rank->gradients.items[i].unit == unit;
    }
    if (!has) return false;
    ret->local = memory_zalloc(cells * sizeof(int));
    ret->reduced = memory_zalloc(cells * sizeof(int));
    ret->unreduced = memory_zalloc(cells * sizeof(int));
    for (int r = 0; r < record->ranks; r++) {
        if (facts_shares_unit(record, &record->rank[r], ret->rank, unit)) add_local(record, ret, &record->rank[r]);
    }
    add_reduced(record, ret);
    return true;
}

void unit_contribution_free(struct unit_contribution *u)
{
    free(u->local);
    free(u->unreduced);
    free(u->reduced);
}

bool unit_contribution_is_repeated(const struct record *record, const struct unit_contribution *u)
{
    struct unit_contribution before;
    if (u->reduced_earlier == 0 || u->earlier_step < 0) return false;
    if (!unit_contribution_read(record, u->rank->rank, u->earlier_step, u->unit, &before)) return false;
    bool repeated = false;
    int M = record->config.layout.microbatches;
    for (int i = 0; i < u->fact->ledger.count; i++) {
        const struct origin *origin = &u->fact->ledger.terms[i].origin;
        if (origin->step == u->earlier_step)
            repeated = repeated || before.reduced[origin->rank * M + origin->microbatch] > 0;
    }
    unit_contribution_free(&before);
    return repeated;
}

bool unit_contribution_was_called(const struct record *record, const struct unit_contribution *u)
{
    const struct communicator *log = u->rank->communicator;
    if (!log || layout_data_ranks(&record->config.layout) == 1) return true;
    for (int i = 0; i < u->rank->gradients.count; i++) {
        const struct gradient_fact *fact = &u->rank->gradients.items[i];
        if (fact->step != u->step || fact->unit != u->unit || fact->stage != GRADIENT_LOCAL) continue;
        bool found = false;
        for (int k = 0; k < communicator_calls(log) && !found; k++) {
            const struct call_record *call = communicator_call(log, k);
            found = call->step == fact->step && call->microbatch == fact->microbatch && call->layer == fact->call_layer &&
                    !strcmp(call->purpose, facts_reduction_site(&record->config, u->unit)->name);
        }
        if (!found) return false;
    }
    return true;
}

int unit_contribution_local_uses(const struct record *record, const struct unit_contribution *u)
{
    int uses = u->unit == 0 && record->config.model.tie_embeddings && record->config.layout.pp == 1 ? 2 : 1;
    return uses * facts_copies_due(&record->config, u->unit);
}

bool unit_contribution_is_right(const struct record *record, const struct rank_record *rank,
                                const struct gradient_fact *fact)
{
    int D = layout_data_ranks(&record->config.layout), M = record->config.layout.microbatches;
    int uses = fact->unit == 0 && record->config.model.tie_embeddings ? 2 : 1;
    int copies = facts_copies_due(&record->config, fact->unit);
    double divisor = facts_unit_divisor_due(&record->config, fact->unit);
    double after = facts_grad_scale(record, rank, fact->step, fact->unit);
    if (fact->ledger.count != uses * D * M) return false;
    for (int i = 0; i < fact->ledger.count; i++) {
        const struct ledger_term *term = &fact->ledger.terms[i];
        const struct rank_record *last = facts_rank(record, record->config.layout.pp - 1, term->origin.rank);
        const struct loss_fact *loss = last ? facts_loss(last, fact->step, term->origin.microbatch) : NULL;
        if (!loss || term->origin.step != fact->step || term->times != copies) return false;
        double due = loss->seed / divisor * after;
        if (!(fabs(term->scale - due) <= 1e-9 * fabs(due))) return false;
        int probe = ((fact->step & 1) * D + term->origin.rank) * M + term->origin.microbatch;
        double error = 0;
        for (int k = 0; probe < fact->probe_count && k < fact->pieces; k++)
            error = fmax(error, fabs(fact->probe[k * fact->probe_count + probe] - uses * copies * due));
        if (!(error <= 64 * uses * copies * facts_storage_roundoff(&record->config) * fabs(due))) return false;
    }
    return true;
}

const struct site *unit_contribution_was_accumulated(const struct record *record, const struct rank_record *rank,
                                                     int step, int unit)
{
    static const struct site *const sites[] = {&site_pp_grad_accumulate, &site_dp_grad_accumulate, &site_hsdp_grad_divisor, &site_dp_grad_scale};
    bool apart = parts_are_apart(record, unit);
    for (int k = 0; k < 4; k++) {
        for (int r = 0; r < record->ranks; r++) {
            const struct rank_record *from = &record->rank[r];
            if (!(apart ? from->tp == rank->tp : facts_shares_unit(record, from, rank, unit))) continue;
            if (facts_was_scaled(from, sites[k], step, unit)) return sites[k];
        }
    }
    return NULL;
}

const struct site *unit_contribution_grad_scale(const struct record *record, const struct rank_record *rank, int step)
{
    if (facts_unscale(rank, step) != 1) return &site_amp_unscale;
    struct factor_numbers numbers = loss_numbers_due(record, step, 0);
    double due = loss_value(loss_convention_of(&record->config)->grad_scale, &numbers);
    numbers.N = facts_count_at_end(record, rank, step);
    double from_count = loss_value(loss_convention_of(&record->config)->grad_scale, &numbers);
    return fabs(from_count / due - 1) > 1e-12 ? &site_loss_token_count_reduce : &site_pp_grad_scale;
}

/* HSDP: what the reduce-scatter over dp_shard gave holds every micro-batch of this row of replicas once, each at its
 * weight. Then what is wrong after the sum over replicas went wrong there. */
static bool scattered_is_right(const struct record *record, const struct rank_record *rank, int step, int unit)
{
    const struct layout *layout = &record->config.layout;
    const struct scale_fact *scale = facts_scale(rank, step);
    int S = layout_shards(layout) / layout_shards_alike(layout), M = layout->microbatches, D = layout_data_ranks(layout), copies = facts_copies_due(&record->config, unit);
    double divisor = facts_unit_divisor_due(&record->config, unit) / (scale ? scale->scale : 1);
    for (int i = 0; i < rank->gradients.count; i++) {
        const struct gradient_fact *fact = &rank->gradients.items[i];
        if (fact->step != step || fact->unit != unit || fact->stage != GRADIENT_SCATTERED) continue;
        if (fact->ledger.count == 0 || fact->ledger.count % (S * M) != 0) return false;
        for (int t = 0; t < fact->ledger.count; t++) {
            const struct ledger_term *term = &fact->ledger.terms[t];
            const struct rank_record *last = facts_rank(record, layout->pp - 1, term->origin.rank);
            const struct loss_fact *loss = last ? facts_loss(last, step, term->origin.microbatch) : NULL;
            int probe = ((step & 1) * D + term->origin.rank) * M + term->origin.microbatch, uses = fact->ledger.count / (S * M) * copies;
            if (!loss || term->origin.step != step || term->times != copies || term->origin.rank / S != rank->replicate) return false;
            double due = loss->seed / divisor, limit = 64 * facts_storage_roundoff(&record->config) * fabs(due) * uses;
            if (!(fabs(term->scale - due) <= 1e-9 * fabs(due))) return false;
            if (probe < fact->probe_count && !(fabs(fact->probe[probe] - uses * due) <= limit)) return false;
        }
        return true;
    }
    return false;
}

const struct site *unit_contribution_reduction(const struct record *record, const struct rank_record *rank, int step,
                                               int unit)
{
    const struct site *second = reduction_sums_second(record, rank, step, unit);
    const struct site *reduction = facts_was_chosen(rank, &site_dp_bucket, step, unit) ? &site_dp_bucket : facts_reduction_site(&record->config, unit);
    if (second && reduction != &site_dp_bucket) return second;
    bool replicated = record->config.layout.zero >= ZERO_2 && record->config.layout.dp_replicate > 1;
    if (replicated && reduction != &site_dp_bucket && scattered_is_right(record, rank, step, unit)) reduction = &site_hsdp_replicate_reduce;
    if (!parts_are_apart(record, unit)) return reduction;
    for (int i = 0; i < rank->gradients.count; i++) {
        const struct gradient_fact *other = &rank->gradients.items[i];
        if (other->step != step || other->stage != GRADIENT_REDUCED || other->unit == 0) continue;
        if (unit_contribution_is_right(record, rank, other)) return &site_tied_grad_reduce;
    }
    return reduction;
}
