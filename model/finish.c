/* finish: what frames a step's micro-batches: token counts before; afterwards the last reductions, tied
 * gradient, norm, clipping, update, and the loss that is reported. */
#include <math.h>
#include <string.h>

#include "model/balance.h"
#include "model/choices.h"
#include "model/precision.h"
#include "model/loss_convention.h"
#include "model/program.h"

static enum format storage_of(const struct program *p)
{
    return p->run->ops->storage;
}

/* Of the sequences, with context parallelism of what this rank has of them; in_shard: labels are shifted there, which loses
 * those at its seams (stage_draw.c). */
static struct data_counts count_own(const struct program *p, int64_t first, int64_t count, bool in_shard)
{
    const struct data *data = &p->run->data;
    const uint16_t *members = p->run->record->members;
    struct data_counts counts = {0};
    if (!p->context_layout) return data_count(data, first, count);
    for (int64_t t = first * data->seq, last = -1; t < (first + count) * data->seq; t++) {
        if (members[t] != p->record->cp) continue;
        bool follows = last >= 0 && last / data->seq == t / data->seq && data->documents[last] == data->documents[t] && data->documents[t] != DOCUMENT_PADDING;
        counts.valid += in_shard ? follows : data->targets[t] != TARGET_IGNORED;
        counts.unshifted += data->documents[t] != DOCUMENT_PADDING;
        counts.positions++;
        last = t;
    }
    return counts;
}

/* N: valid targets of the step over all data ranks. Each rank counts its own micro-batches as it will draw
 * them; the last stage, which has the loss, sums over the data group. Where the convention has no use for it there is
 * no such sum: the letters come from the data. */
void step_begin(struct program *p)
{
    const struct run_config *config = p->run->config;
    const struct layout *layout = &config->layout;
    int per = layout_sequences_per_microbatch(config);
    p->report = 0;
    for (int i = 0; i < p->units_count; i++) {
        p->units[i].backwards = 0;
        p->units[i].ready_microbatch = -1; /* micro-batch 0 of the step before is not this one's */
        unit_zero_gradient(&p->units[i], &p->context, program_where(p, -1, p->units[i].index));
    }
    p->numbers = (struct factor_numbers){.M = layout->microbatches, .D = p->context.data_ranks, .P = layout->pp, .C = layout_cp(layout),
        .T = layout->tp, .E = layout_ep(layout), .A = layout->reduce_op == FSDP_REDUCE_AVG ? p->context.data_ranks : 1,
        .D_shard = layout->dp_shard, .D_replicate = layout->dp_replicate};
    if (!p->is_last) return;
    bool in_shard = p->context_layout && !decision_site(p->run->plan, &site_cp_labels, program_where(p, -1, -1), true, true);
    p->counts = count_own(p, (int64_t)p->step * config->train.global_batch + layout_first_sequence(config, p->data_rank, 0), (int64_t)layout->microbatches * per, in_shard);
    double counts[3] = {(double)p->counts.valid, (double)p->counts.unshifted, (double)p->counts.positions};
    struct comm how = {.site = &site_loss_token_count_reduce, .where = program_where(p, -1, -1)};
    if (loss_convention_counts(loss_convention_of(config))) {
        all_reduce(p->communicator, p->dp, &how, (struct buffer){counts, 3, FORMAT_FP64, FORMAT_FP64, NULL}, REDUCE_SUM);
    } else {
        struct factor_numbers due = loss_numbers_due(p->run->record, p->step, 0);
        counts[0] = due.N;
        counts[1] = due.N_unshifted;
        counts[2] = due.N_all;
    }
    p->numbers.N = counts[0];
    p->numbers.N_unshifted = counts[1];
    p->numbers.N_all = counts[2];
    p->numbers.n_rank = p->numbers.n = (double)p->counts.valid;
    p->numbers.n_rank_unshifted = (double)p->counts.unshifted;
    struct count_fact fact = {p->step, p->counts.valid, p->counts.unshifted, p->counts.positions, counts[0]};
    record_push(p->record, counts, fact);
}

/* Takes over the outstanding reductions; where a scatter was deferred to the end, sums the replicas. */
static void flush(struct program *p)
{
    struct where where = program_where(p, -1, -1);
    bool wait = decision_site(p->run->plan, &site_pp_grad_flush, where, true, true);
    for (int b = 0; wait && b < p->context.buckets_count; b++) bucket_apply(&p->context.buckets[b], &p->context, where);
    for (int i = 0; i < p->units_count; i++) second_reduction_replicas(p, &p->units[i]);
}

/* What no reduction took: where gradients are whole, the optimizer sees it all the same (param.grad is the
 * accumulator); where they are sharded it stays behind. */
static void keep_unreduced(struct program *p, struct unit *unit)
{
    enum format storage = storage_of(p);
    if (!unit->is_unreduced) return;
    unit_record_gradient(unit, &p->context, p->step, -1, GRADIENT_UNREDUCED, -1);
    if (p->run->config->layout.zero >= ZERO_2) return;
    for (int k = 0; k < unit->pieces_count; k++) {
        struct unit_piece *piece = &unit->pieces[k];
        char *to = element_at(unit->reduced, piece->own_at, storage), *probes = unit_reduced_probes(unit, k, storage);
        if (piece->own_count > 0)
            p->run->ops->vector_add(to, to, element_at(unit->grad, piece->own_from, storage), piece->own_count);
        p->run->ops->vector_add(probes, probes, unit->grad_probes, unit->probe_count);
        ledger_add(&piece->reduced_ledger, &unit->grad_ledger);
    }
    unit_clear_accumulator(unit, storage);
}

/* The largest magnitude; what is not a number counts as infinite, since a maximum may drop it. */
static double largest_magnitude(const void *values, size_t count, enum format storage)
{
    double largest = 0;
    for (size_t i = 0; i < count; i++) {
        double magnitude = fabs(format_get(values, i, storage));
        if (isnan(magnitude)) return INFINITY;
        if (magnitude > largest) largest = magnitude;
    }
    return largest;
}

/* A maximum of nothing has no value: a slice without elements gives 0, the least that a magnitude can be. */
static double largest_of_slices(struct program *p, const struct unit *unit, struct where where)
{
    double largest = 0;
    for (int k = 0; k < unit->slices_count; k++) {
        const struct slice *slice = &unit->slices[k];
        const struct unit_param *q = &unit->params[slice->i];
        where.param = p->run->params.params[q->param].info.name;
        if (q->frozen || slice->count > 0) continue;
        if (!choice_site(p->run->plan, p->record, &site_clip_empty_shard, where, unit->index, true)) largest = INFINITY; /* NaN, or an exception */
    }
    return fmax(largest, largest_magnitude(unit->reduced, unit->shard_trained_count, storage_of(p)));
}

/* One unit's part of the norm: the squares of what is owned of it, or the largest. */
static double part_of_norm(struct program *p, const void *values, size_t count)
{
    bool largest = p->run->config->train.grad_norm == GRAD_NORM_INF;
    return largest ? largest_magnitude(values, count, storage_of(p)) : p->run->ops->vector_sum_squares(values, count);
}

/* Of what this rank owns: what every tp rank has whole counts on the first of them alone. With expert parallelism the norm
 * is summed over dp_shard at any zero, since experts differ there: what is whole on all counts on the first. */
static double owned_part(struct program *p, const struct unit *unit)
{
    bool largest = p->run->config->train.grad_norm == GRAD_NORM_INF;
    if (layout_ep(&p->run->config->layout) > 1 && !unit_is_first_copy(unit, &p->context)) return 0;
    if (unit->groups->tp_copy == 0) return part_of_norm(p, unit->reduced, unit->shard_trained_count);
    double all = 0;
    for (int k = 0; k < unit->slices_count; k++) {
        const struct slice *slice = &unit->slices[k];
        const struct unit_param *q = &unit->params[slice->i];
        if (q->frozen || q->whole || slice->count == 0) continue;
        double part = part_of_norm(p, element_at(unit->reduced, slice->at, storage_of(p)), (size_t)slice->count);
        all = largest ? fmax(all, part) : all + part;
    }
    return all;
}

/* What goes into the norm as it is read, squares or the largest; and, in ret_owned, of what is owned. */
static double read_gradients(struct program *p, double *ret_owned)
{
    bool largest = p->run->config->train.grad_norm == GRAD_NORM_INF;
    double all = 0;
    for (int i = 0; i < p->units_count; i++) {
        const struct unit *unit = &p->units[i];
        struct where where = program_where(p, -1, unit->index);
        if (unit->part) continue; /* the tied copy is counted where the embedding is */
        double owned = owned_part(p, unit);
        *ret_owned = largest ? fmax(*ret_owned, owned) : *ret_owned + owned;
        if (!choice_site(p->run->plan, p->record, &site_clip_parameters, where, unit->index, true)) continue;
        bool due = choice_site(p->run->plan, p->record, &site_clip_gradient, where, unit->index, true);
        double read = !due ? part_of_norm(p, unit->grad, unit->trained_count) : largest ? largest_of_slices(p, unit, where) : owned;
        all = largest ? fmax(all, read) : all + read;
    }
    return all;
}

/* Squares of what this rank owns, added up, or the largest magnitude, of which the largest is taken; whole gradients
 * (zero 0) count once over the data ranks. */
static double clip(struct program *p)
{
    const struct train_config *train = &p->run->config->train;
    struct where where = program_where(p, -1, -1);
    struct norm_fact fact = {.step = p->step, .coefficient = 1};
    bool largest = train->grad_norm == GRAD_NORM_INF;
    double owned = 0, sum = read_gradients(p, &owned);
    bool counts = p->run->config->layout.zero == ZERO_0 && layout_ep(&p->run->config->layout) == 1 ? p->data_rank == 0 : p->record->replicate == 0;
    fact.local = counts ? owned : 0;
    struct comm how = {.site = &site_clip_norm_reduce, .where = where};
    fact.counted = largest ? 1 : factor_site(p->run->plan, &site_clip_squares, where, 1, &p->numbers);
    sum *= fact.counted;
    bool one_copy = choice_site(p->run->plan, p->record, &site_clip_group, where, -1, true);
    struct group *group = one_copy ? p->norm_group : communicator_group(p->communicator, "world");
    fact.members = group->size;
    all_reduce(p->communicator, group, &how, (struct buffer){&sum, 1, FORMAT_FP64, FORMAT_FP64, NULL}, largest ? REDUCE_MAX : REDUCE_SUM);
    fact.norm = largest ? sum : sqrt(sum);
    if (train->grad_clip > 0) {
        double due = train->grad_clip / (fact.norm + 1e-6);
        fact.coefficient = factor_site(p->run->plan, &site_clip_coefficient, how.where, due < 1 ? due : 1, &p->numbers);
    }
    record_push(p->record, norms, fact);
    return fact.coefficient;
}

/* ---- update ---- */

/* Groups that one key stands for have the settings of the last: no decay. */
static double decay_of(struct program *p, const struct unit_param *q, struct where where)
{
    const struct train_config *train = &p->run->config->train;
    bool grouped = train->no_decay != NO_DECAY_NONE, apart = !grouped || decision_site(p->run->plan, &site_optimizer_group, where, true, true);
    return q->no_decay || !apart ? 0 : train->weight_decay;
}

/* Returns how many elements were written. */
static int64_t update_slice(struct program *p, struct unit *unit, const struct slice *slice, void *held, double coefficient, double weight_decay)
{
    const struct train_config *train = &p->run->config->train;
    const struct ops *ops = p->run->ops;
    enum format storage = storage_of(p);
    size_t count = (size_t)slice->count;
    char *values = element_at(held, slice->at, storage), *moment1 = element_at(unit->moment1, slice->at, storage),
         *moment2 = element_at(unit->moment2, slice->at, storage);
    const char *gradient = element_at(unit->reduced, slice->at, storage);
    if (train->optimizer == OPTIMIZER_ADAMW) {
        ops->adamw_update(values, gradient, moment1, moment2, count, coefficient, train->lr, train->beta1, train->beta2, train->eps,
                          weight_decay, unit->updates + 1);
    } else {
        ops->sgd_update(values, gradient, train->momentum != 0 ? moment1 : NULL, count, coefficient, train->lr, train->momentum,
                        weight_decay, unit->updates + 1);
    }
    vector_round(values, count, storage, p->run->config->precision.master);
    return slice->count;
}

/* The parameters that the optimizer holds: the shards, or those of before they were made, a copy that nothing reads. */
static void *held_by_optimizer(struct program *p, struct unit *unit, struct where where)
{
    if (decision_site(p->run->plan, &site_fsdp_optimizer_params, where, true, true)) return unit->master;
    size_t bytes = (unit->shard_count + 1) * format_storage_bytes(storage_of(p));
    if (!unit->captured) {
        unit->captured = arena_alloc(p->context.arena, bytes);
        memcpy(unit->captured, unit->master, bytes);
    }
    return unit->captured;
}

/* The stamp goes with the writing: what was not updated keeps the old one. */
static void stamp(struct program *p, struct unit *unit)
{
    int me = p->run->config->layout.zero == ZERO_0 ? 0 : unit->groups->shard->me;
    ledger_clear(&unit->shard_version);
    ledger_add_term(&unit->shard_version, (struct origin){p->step + 1, me, -1, unit->index}, 1, 1);
}

/* Nothing used it, and its gradient is none: the zeros in the buffer are not taken for one. */
static bool is_left_alone(struct program *p, const struct unit_param *q, struct where where)
{
    if (!train_leaves_alone(p->run->config, &p->run->params.params[q->param].info)) return false;
    return decision_site(p->run->plan, &site_optimizer_no_gradient, where, true, true);
}

/* All that is trained of it is left alone: the step is done with nothing written. */
static bool rests(const struct program *p, const struct unit *unit)
{
    for (int i = 0; i < unit->count; i++) {
        const struct unit_param *q = &unit->params[i];
        if (!q->frozen && !train_leaves_alone(p->run->config, &p->run->params.params[q->param].info)) return false;
    }
    return true;
}

/* How many entries of the optimizer's owner map are this slice's; each updates it. */
static int owners_of(struct program *p, struct where where)
{
    return (int)factor_site(p->run->plan, &site_optimizer_entries, where, 1, &p->numbers);
}

static void update(struct program *p, struct unit *unit, double coefficient, bool skipped)
{
    struct where where = program_where(p, -1, unit->index);
    /* As PyTorch: a parameter without a gradient is left alone. A step that all leave out is done, with nothing written. */
    bool has_gradient = unit_has_gradient(unit) && !skipped, any = skipped || rests(p, unit), wrote = false;
    for (int k = 0; k < unit->slices_count; k++) {
        const struct slice *slice = &unit->slices[k];
        const struct unit_param *q = &unit->params[slice->i];
        where.param = p->run->params.params[q->param].info.name;
        struct update_fact fact = {.step = p->step, .unit = unit->part ? p->run->config->model.layers + 1 : unit->index,
                                   .param = q->param, .elements = slice->count, .weight_decay = decay_of(p, q, where)};
        bool owns = decision_site(p->run->plan, &site_optimizer_owns, where, !q->frozen, !q->frozen);
        bool alone = is_left_alone(p, q, where) || balance_passes_over(p, unit, where.param, where);
        if (owns && has_gradient && !q->frozen && !alone) {
            void *held = held_by_optimizer(p, unit, where);
            int64_t written = 0;
            for (int times = owners_of(p, where); times > 0; times--) written += update_slice(p, unit, slice, held, coefficient, fact.weight_decay);
            fact.updates = fact.elements > 0 ? (int)(written / fact.elements) : 1;
            wrote = true;
            any = any || held == unit->master;
        }
        tensor_site(p->run->plan, &site_optimizer_update, where,
                    tensor_1d(element_at(unit->master, slice->at, storage_of(p)), storage_of(p), slice->count));
        fact.version = any || q->frozen || alone ? p->step + 1 : unit->shard_version.terms[0].origin.step;
        record_push(p->record, updates, fact);
    }
    unit->updates += wrote;
    if (any) stamp(p, unit);
    memset(unit->reduced, 0, (unit->shard_trained_count + (size_t)unit->pieces_count * unit->probe_count) * format_storage_bytes(storage_of(p)));
    for (int k = 0; k < unit->pieces_count; k++) ledger_clear(&unit->pieces[k].reduced_ledger);
}

/* The loss that is printed: the mean over data ranks of D * their part, as the convention makes it (stages without a
 * loss count nothing, and take the last stage's figure, in the format that the convention sends it in). */
static void report(struct program *p)
{
    struct where where = program_where(p, -1, -1);
    double logged = p->is_last ? p->report * p->context.data_ranks : 0;
    struct comm how = {.site = &site_loss_report_reduce, .where = where};
    struct comm down = {.site = &site_loss_report_broadcast, .where = where};
    double contributed = logged;
    struct buffer buffer = {&logged, 1, FORMAT_FP64, FORMAT_FP64, NULL};
    all_reduce(p->communicator, p->dp, &how, buffer, REDUCE_AVG);
    double averaged = logged;
    buffer.wire = loss_convention_of(p->run->config)->logged_format;
    broadcast(p->communicator, p->pp, &down, buffer, p->pp->size - 1);
    struct factor_numbers numbers = p->numbers;
    if (numbers.N == 0) numbers.N = (double)record_valid_tokens_due(p->run->record, p->step); /* a stage that counts none */
    double scale = factor_site(p->run->plan, &site_metrics_loss, where, 1, &numbers);
    struct report_fact fact = {p->step, logged * scale, scale, contributed, averaged};
    record_push(p->record, reports, fact);
}

void step_finish(struct program *p)
{
    flush(p);
    for (int i = 0; i < p->units_count; i++) keep_unreduced(p, &p->units[i]);
    sequence_grads_sum(p);
    second_reduction_tied(p);
    bool skipped = loss_scale_unscale(p);
    grad_scale(p);
    balance_update(p);
    for (int i = 0; i < p->units_count; i++) {
        if (p->units[i].trained_count > 0) unit_record_gradient(&p->units[i], &p->context, p->step, -1, GRADIENT_REDUCED, -1);
    }
    capture_gradients(p);
    double coefficient = clip(p);
    for (int i = 0; i < p->units_count; i++) update(p, &p->units[i], coefficient, skipped);
    capture_params(p, p->step);
    unit_refresh(p->units, p->units_count, &p->context, p->step);
    report(p);
}
