/* second_reduction: sums of reduced gradients that come after the buckets' own reduction.
 *
 *   over replicas (HSDP)    g = sum over dp_replicate of g, then + what was set aside (hsdp.accumulate), / hsdp.grad_divisor
 *   tied embedding          g = sum over first and last stage of g, where both have a copy
 * In the order of the all-reduce's algorithm, in precision.reduce; then stored in precision.accumulate. Each is started,
 * then waited for; probes and ledger go along. What a call is given and what it gives is noted as sketches. */
#include <stdlib.h>
#include <string.h>

#include "model/choices.h"
#include "model/precision.h"
#include "model/program.h"

static enum format storage_of(const struct program *p)
{
    return p->run->ops->storage;
}

static const double *sketch_sent(struct program *p, const struct unit *unit)
{
    if (!p->context.watch) return NULL;
    double *sketch = arena_alloc(p->record->arena, 5 * sizeof *sketch);
    p->run->ops->vector_sketch(sketch, unit->reduced, unit->shard_trained_count);
    return sketch;
}

static void note(struct program *p, const struct site *site, const struct unit *unit, const double *sent)
{
    if (!p->context.watch) return;
    struct reduction_fact fact = {.site = site, .step = p->step, .microbatch = -1, .bucket = unit->index, .parts = 1, .sent = sent};
    p->run->ops->vector_sketch(fact.received, unit->reduced, unit->shard_trained_count);
    fact.bits = vector_bits(unit->reduced, unit->shard_trained_count, storage_of(p), &fact.values);
    record_push(p->record, reductions, fact);
}

/* In place, over the group: own part, probes and the smallest ledger of its pieces. */
static void sum_over(struct program *p, struct unit *unit, struct group *group, const struct site *site,
                     const struct site *reader, struct where where)
{
    struct comm how = {.site = site, .where = where, .uncounted = (size_t)unit->pieces_count * unit->probe_count};
    unit_reduced_ledger(unit, &unit->summed_ledger);
    struct buffer both = {unit->reduced, unit->shard_trained_count + how.uncounted, storage_of(p), p->run->config->precision.reduce,
                          &unit->summed_ledger};
    const double *sent = sketch_sent(p, unit);
    struct collective *summing = all_reduce_start(p->communicator, group, &how, both, both, REDUCE_SUM);
    collective_wait(p->communicator, summing);
    communicator_reads(p->communicator, unit->reduced, both.count * format_storage_bytes(storage_of(p)), reader, where);
    note(p, site, unit, sent);
    vector_round(unit->reduced, unit->shard_trained_count, storage_of(p), p->run->config->precision.accumulate);
    for (int k = 0; k < unit->pieces_count; k++) ledger_copy(&unit->pieces[k].reduced_ledger, &unit->summed_ledger);
}

/* After the sum over replicas: what was set aside before it, and what it is divided by. */
static void finish_replicas(struct program *p, struct unit *unit, struct where where)
{
    size_t count = unit->shard_trained_count + (size_t)unit->pieces_count * unit->probe_count;
    for (int k = 0; k < unit->pieces_count; k++) {
        if (unit->pieces[k].partial_ledger.count == 0) continue;
        ledger_add(&unit->pieces[k].reduced_ledger, &unit->pieces[k].partial_ledger);
        ledger_clear(&unit->pieces[k].partial_ledger);
    }
    p->run->ops->vector_add(unit->reduced, unit->reduced, unit->partial, count);
    memset(unit->partial, 0, count * format_storage_bytes(storage_of(p)));
    double divisor = factor_site(p->run->plan, &site_hsdp_grad_divisor, where, 1, &p->numbers);
    if (divisor == 1) return;
    struct factor_fact fact = {&site_hsdp_grad_divisor, p->step, -1, unit->index, 1 / divisor, p->step, 0};
    record_push(p->record, factors, fact);
    unit_scale_reduced(unit, &p->context, 1 / divisor);
}

/* Sums the copies of a shard over dp_replicate (HSDP). In PyTorch's order: what came from earlier reductions of the
 * step is added first, and then all of it is reduced; the other way round, only the last one is. */
void second_reduction_replicas(struct program *p, struct unit *unit)
{
    struct where where = program_where(p, -1, unit->index);
    if (p->context.replicate_group->size == 1 || p->run->config->layout.zero < ZERO_2 || unit->trained_count == 0) return;
    if (!choice_site(p->run->plan, p->record, &site_hsdp_replicate, where, unit->index, true)) return;
    unit_record_gradient(unit, &p->context, p->step, -1, GRADIENT_SCATTERED, -1);
    sum_over(p, unit, p->context.replicate_group, &site_hsdp_replicate_reduce, &site_hsdp_grad_divisor, where);
    finish_replicas(p, unit, where);
}

/* A reduced gradient and what its ledger says, taken before something else is added to it. */
struct early_gradient { void *values; struct ledger *ledgers; };

static struct early_gradient take_early(struct program *p, const struct unit *unit, size_t count)
{
    struct early_gradient early = {0};
    struct where where = program_where(p, -1, -1);
    if (choice_site(p->run->plan, p->record, &site_optimizer_gradients, where, unit->index, true)) return early;
    size_t bytes = count * format_storage_bytes(storage_of(p));
    early.values = memory_alloc(bytes);
    memcpy(early.values, unit->reduced, bytes);
    early.ledgers = memory_zalloc((size_t)unit->pieces_count * sizeof *early.ledgers);
    for (int k = 0; k < unit->pieces_count; k++) ledger_copy(&early.ledgers[k], &unit->pieces[k].reduced_ledger);
    return early;
}

static void use_early(struct program *p, struct unit *unit, size_t count, struct early_gradient early)
{
    if (!early.values) return;
    memcpy(unit->reduced, early.values, count * format_storage_bytes(storage_of(p)));
    for (int k = 0; k < unit->pieces_count; k++) {
        ledger_copy(&unit->pieces[k].reduced_ledger, &early.ledgers[k]);
        ledger_done(&early.ledgers[k]);
    }
    free(early.ledgers);
    free(early.values);
}

void second_reduction_tied(struct program *p)
{
    if (!p->embedding) return;
    struct unit *unit = program_unit(p, 0, p->is_last ? 1 : 0);
    if (unit->trained_count == 0) return;
    size_t count = unit->shard_trained_count + (size_t)unit->pieces_count * unit->probe_count;
    struct early_gradient early = take_early(p, unit, count);
    sum_over(p, unit, p->embedding, &site_tied_grad_reduce, &site_clip_gradient, program_where(p, -1, -1));
    use_early(p, unit, count, early);
}
