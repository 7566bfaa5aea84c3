/* sequence_grads: with sequence parallelism, the sum over tp of the gradients of parameters that are whole on every tp rank:
 * each of these ranks computed with them on its slice of the sequences alone (layers/sequence_parallel.h). And without it that
 * of norms of heads, which see a rank's own heads (layers/attention_block.c).
 *
 *   g = sum over tp of g, / sp.grad_divisor
 *
 * once a step, behind the reductions over data ranks and before scaling, clipping and update, one call a unit that has any
 * (Megatron-LM's _allreduce_layernorm_grads): of what this rank owns of them, one parameter behind the other, in
 * precision.reduce, then stored in precision.accumulate. tp ranks that own the same slices of the data ranks' shards meet.
 * The unit's probes and ledger stay as they are: they count micro-batches, and each slice is of the same micro-batches. */
#include <string.h>

#include "model/choices.h"
#include "model/params.h"
#include "model/precision.h"
#include "model/program.h"

static enum format storage_of(const struct program *p)
{
    return p->run->ops->storage;
}

/* Of what a unit may have of either: is it among those that are summed? */
struct among { bool router, head_norms; };

static bool is_summed(const struct program *p, const struct unit *unit, struct among among, const struct slice *slice)
{
    const struct unit_param *q = &unit->params[slice->i];
    if ((q->info->is_router && !among.router) || (q->info->is_head_norm && !among.head_norms)) return false;
    return slice->count > 0 && !q->frozen && q->whole && param_sees_part(&p->run->config->layout, q->info);
}

static struct among among_of(struct program *p, const struct unit *unit, struct where where)
{
    bool router = false, head_norms = false;
    for (int i = 0; i < unit->count; i++) {
        const struct param_info *info = unit->params[i].info;
        router = router || (info->is_router && param_sees_part(&p->run->config->layout, info));
        head_norms = head_norms || (info->is_head_norm && param_sees_part(&p->run->config->layout, info));
    }
    return (struct among){.router = !router || choice_site(p->run->plan, p->record, &site_moe_router_grad, where, unit->index, true),
                          .head_norms = !head_norms || choice_site(p->run->plan, p->record, &site_tp_head_norm_grad, where, unit->index, true)};
}

/* Between the unit's gradient and the packed one; the packed elements. */
static size_t move(const struct program *p, struct unit *unit, struct among among, void *packed, bool pack)
{
    size_t count = 0, bytes = format_storage_bytes(storage_of(p));
    for (int k = 0; k < unit->slices_count; k++) {
        const struct slice *slice = &unit->slices[k];
        if (!is_summed(p, unit, among, slice)) continue;
        char *own = element_at(unit->reduced, slice->at, storage_of(p)), *there = packed ? element_at(packed, count, storage_of(p)) : NULL;
        count += (size_t)slice->count;
        if (!packed) continue;
        if (pack) memcpy(there, own, (size_t)slice->count * bytes);
        else memcpy(own, there, (size_t)slice->count * bytes);
    }
    return count;
}

static void sum_unit(struct program *p, struct unit *unit)
{
    const struct precision *precision = &p->run->config->precision;
    enum format storage = storage_of(p);
    struct where where = program_where(p, -1, unit->index);
    struct comm how = {.site = &site_sp_grad_reduce, .where = where};
    struct sum_fact fact = {.site = &site_sp_grad_reduce, .step = p->step, .microbatch = -1, .unit = unit->index};
    struct among among = among_of(p, unit, where);
    size_t count = move(p, unit, among, NULL, true);
    bool slices = layout_slices_sequences(&p->run->config->layout);
    if (count == 0 || (slices && !choice_site(p->run->plan, p->record, &site_sp_grad, where, unit->index, true))) return;
    struct arena_mark mark = arena_mark(p->scratch);
    void *packed = arena_alloc(p->scratch, count * format_storage_bytes(storage));
    move(p, unit, among, packed, true);
    if (p->context.watch) p->run->ops->vector_sketch(fact.sent, packed, count);
    all_reduce(p->communicator, p->tensor_parallel.group, &how, (struct buffer){packed, count, storage, precision->reduce, NULL}, REDUCE_SUM);
    if (p->context.watch) {
        p->run->ops->vector_sketch(fact.received, packed, count);
        record_push(p->record, sums, fact);
    }
    double divisor = factor_site(p->run->plan, &site_sp_grad_divisor, where, 1, &p->numbers);
    struct factor_fact factor = {&site_sp_grad_divisor, p->step, -1, unit->index, 1 / divisor, p->step, 0};
    record_push(p->record, factors, factor);
    if (divisor != 1) p->run->ops->vector_scale(packed, 1 / divisor, count);
    vector_round(packed, count, storage, precision->accumulate);
    move(p, unit, among, packed, false);
    arena_release(p->scratch, mark);
}

void sequence_grads_sum(struct program *p)
{
    if (p->run->config->layout.tp == 1) return;
    for (int i = 0; i < p->units_count; i++) sum_unit(p, &p->units[i]);
}
