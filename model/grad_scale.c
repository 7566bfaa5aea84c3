/* grad_scale: what multiplies gradients outside of the loss and of their reduction.
 *
 * grad_scale, once a step, after the last reduction of every gradient, the tied embedding's too, as Megatron-LM's
 * finalize_model_grads has it: g *= value, by train.loss_normalization 1, 1/M (PyTorch's scale_grads), 1/N, D/N. A value
 * with N needs the count on all stages: the last stage's is broadcast over pp and then added over the data ranks
 * (site loss.token_count_reduce). It multiplies, where PyTorch and AutoModel divide: one rounding of the run's format.
 *
 * grad_accumulate, after a micro-batch's gradient was added to the unsharded accumulator, and grad_accumulate_reduced,
 * after it went into its reduction: due is 1, nothing happens. What systems did wrong there (torchtitan #1732): the sum
 * so far is divided at each micro-batch, so that the k-th from the end weighs 1/M^k.
 *
 * grad_extra_factor, of the reduced gradient beside the divisor: due is 1, as above.
 *
 * Probes and ledger move in the same call as the numbers. */
#include "model/loss_convention.h"
#include "model/precision.h"
#include "model/program.h"

/* Valid tokens of the step, on a rank of any stage. */
static double count_everywhere(struct program *p)
{
    double count = p->is_last ? (double)p->counts.valid : 0;
    struct comm how = {.site = &site_loss_token_count_reduce, .where = program_where(p, -1, -1)};
    struct buffer buffer = {&count, 1, FORMAT_FP64, FORMAT_FP64, NULL};
    broadcast(p->communicator, p->pp, &how, buffer, p->pp->size - 1);
    all_reduce(p->communicator, p->dp, &how, buffer, REDUCE_SUM);
    struct factor_fact fact = {&site_loss_token_count_reduce, p->step, -1, -1, count, p->step, 0};
    record_push(p->record, factors, fact);
    return count;
}

/* Noted where it did anything. */
double grad_extra_factor(struct program *p, const struct site *site, const struct unit *unit, struct where where)
{
    double factor = factor_site(p->run->plan, site, where, 1, &p->numbers);
    if (factor == 1) return 1;
    struct factor_fact fact = {site, p->step, where.microbatch, unit->index, factor, p->step, 0};
    record_push(p->record, factors, fact);
    return factor;
}

void grad_scale(struct program *p)
{
    const struct loss_convention *convention = loss_convention_of(p->run->config);
    struct factor_numbers numbers = p->numbers;
    struct loss_cut cut = loss_cut_of(p->run->config);
    if (convention->counts_at_end) p->numbers.N = numbers.N = count_everywhere(p);
    numbers.M = cut.microbatches;
    numbers.D = cut.data_ranks;
    double due = loss_value(convention->grad_scale, &numbers);
    for (int i = 0; i < p->units_count; i++) {
        struct unit *unit = &p->units[i];
        struct where where = program_where(p, -1, unit->index);
        unit_scale_reduced(unit, &p->context, grad_extra_factor(p, &site_dp_grad_scale, unit, where));
        double value = factor_site(p->run->plan, &site_pp_grad_scale, where, due, &p->numbers);
        struct factor_fact fact = {&site_pp_grad_scale, p->step, -1, unit->index, value, p->step, 0};
        unit_scale_reduced(unit, &p->context, value);
        record_push(p->record, factors, fact);
    }
}

void grad_accumulate(struct program *p, struct unit *unit, struct where where)
{
    if (unit->grad_ledger.count == 0) return;
    double factor = grad_extra_factor(p, &site_pp_grad_accumulate, unit, where);
    if (factor == 1) return;
    p->run->ops->vector_scale(unit->grad, factor, unit->full_count);
    vector_round(unit->grad, unit->trained_count, p->run->ops->storage, p->run->config->precision.accumulate);
    p->run->ops->vector_scale(unit->grad_probes, factor, unit->probe_count);
    ledger_scale(&unit->grad_ledger, factor);
}

void grad_accumulate_reduced(struct program *p, struct unit *unit, struct where where)
{
    if (unit->pieces[0].reduced_ledger.count == 0) return; /* nothing there to scale */
    unit_scale_reduced(unit, &p->context, grad_extra_factor(p, &site_dp_grad_accumulate, unit, where));
}
