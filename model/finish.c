/* finish: what frames a step's micro-batches: token counts before; afterwards the last reductions, tied
 * gradient, norm, clipping, update, and the loss that is reported. */
#include <math.h>

#include "model/loss_convention.h"
#include "model/program.h"
#include "sim/assertion.h"
#include "sim/hash.h"

static enum format storage_of(const struct program *p)
{
    return p->run->ops->storage;
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
    for (int i = 0; i < p->units_count; i++) p->units[i].backwards = 0;
    p->numbers = (struct factor_numbers){.M = layout->microbatches, .D = p->context.data_ranks, .P = layout->pp, .C = 1,
        .T = 1, .E = 1, .A = layout->reduce_op == FSDP_REDUCE_AVG ? p->context.data_ranks : 1};
    if (!p->is_last) return;
    p->counts = data_count(&p->run->data, (int64_t)p->step * config->train.global_batch +
                           (int64_t)p->data_rank * layout->microbatches * per, (int64_t)layout->microbatches * per);
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

static void flush(struct program *p)
{
    struct where where = program_where(p, -1, -1);
    if (!decision_site(p->run->plan, &site_pp_grad_flush, where, true, true)) return;
    for (int i = 0; i < p->units_count; i++) unit_apply_pending(&p->units[i], &p->context, where);
}

/* What no reduction took: where parameters are whole, the optimizer sees it all the same (param.grad is the
 * accumulator); where they are sharded it stays behind. */
static void keep_unreduced(struct program *p, struct unit *unit)
{
    if (!unit->is_unreduced) return;
    unit_record_gradient(unit, &p->context, p->step, -1, GRADIENT_UNREDUCED);
    if (unit->sharded) return;
    size_t count = unit->shard_count + unit->probe_count;
    p->run->ops->vector_add(unit->grad_shard, unit->grad_shard, unit->grad, count);
    ledger_add(&unit->grad_shard_ledger, &unit->grad_ledger);
    memset(unit->grad, 0, count * format_storage_bytes(storage_of(p)));
    ledger_clear(&unit->grad_ledger);
    unit->is_unreduced = false;
}

static void reduce_tied(struct program *p)
{
    if (!p->embedding) return;
    struct unit *unit = program_unit(p, 0, p->is_last ? 1 : 0);
    struct comm how = {.site = &site_tied_grad_reduce, .where = program_where(p, -1, -1), .uncounted = unit->probe_count};
    struct buffer buffer = {unit->grad_shard, unit->shard_count + unit->probe_count, storage_of(p), storage_of(p), &unit->grad_shard_ledger};
    all_reduce(p->communicator, p->embedding, &how, buffer, REDUCE_SUM);
}

static double clip(struct program *p)
{
    const struct train_config *train = &p->run->config->train;
    struct norm_fact fact = {.step = p->step, .coefficient = 1};
    double squares = 0;
    for (int i = 0; i < p->units_count; i++) {
        if (p->units[i].part) continue; /* the tied copy is counted where the embedding is */
        squares += p->run->ops->vector_sum_squares(p->units[i].grad_shard, p->units[i].shard_count);
    }
    fact.local_squares = p->run->config->layout.zero == ZERO_3 || p->data_rank == 0 ? squares : 0;
    struct comm how = {.site = &site_clip_norm_reduce, .where = program_where(p, -1, -1)};
    all_reduce(p->communicator, p->norm_group, &how, (struct buffer){&squares, 1, FORMAT_FP64, FORMAT_FP64, NULL}, REDUCE_SUM);
    fact.norm = sqrt(squares);
    if (train->grad_clip > 0) {
        double due = train->grad_clip / (fact.norm + 1e-6);
        fact.coefficient = factor_site(p->run->plan, &site_clip_coefficient, how.where, due < 1 ? due : 1, &p->numbers);
    }
    record_push(p->record, norms, fact);
    return fact.coefficient;
}

/* ---- capture ---- */

static double gradient_norm(const struct program *p, const struct unit *unit, int i)
{
    const struct unit_param *q = &unit->params[i];
    const char *data = (const char *)unit->grad_shard + q->shard_at * format_storage_bytes(storage_of(p));
    return sqrt(p->run->ops->vector_sum_squares(data, (size_t)(q->my_rows * q->columns)));
}

/* How large the terms were whose sum a gradient is, where that sum can vanish in exact arithmetic and leave noise:
 * - A bias' gradient sums the same output gradients as its matrix' does, there each times an input of size about
 *   1 (a key bias without RoPE has no gradient at all).
 * - Queries and keys get theirs through the softmax' backward, a difference of terms of the size that the
 *   values get; where a query sees one key only, nothing is left. A loss of eight bits is taken as noise. */
static double terms_norm(const struct program *p, const struct unit *unit, int i)
{
    static const int matrix_of[] = {[LAYER_BQ] = LAYER_WQ, [LAYER_BK] = LAYER_WK, [LAYER_BV] = LAYER_WV, [LAYER_BO] = LAYER_WO,
                                    [LAYER_B1] = LAYER_W1, [LAYER_B2] = LAYER_W2, [LAYER_B3] = LAYER_W3};
    if (unit->index == 0 || unit->index == p->run->config->model.layers + 1) return 0;
    int matrix = i >= LAYER_BQ ? matrix_of[i] : i;
    double own = i >= LAYER_BQ ? gradient_norm(p, unit, matrix) : 0;
    bool through_softmax = matrix == LAYER_WQ || matrix == LAYER_WK;
    return through_softmax ? fmax(own, gradient_norm(p, unit, LAYER_WV) / 256) : own;
}

static void capture(struct program *p, const struct unit *unit, int step, enum tensor_kind kind)
{
    enum format storage = storage_of(p);
    const struct layout *layout = &p->run->config->layout;
    for (int i = 0; i < unit->count; i++) {
        const struct unit_param *q = &unit->params[i];
        size_t count = (size_t)(q->my_rows * q->columns), bytes = count * format_storage_bytes(storage);
        const char *from = (const char *)(kind == TENSOR_GRADIENT ? unit->grad_shard : unit->shard) + q->shard_at * format_storage_bytes(storage);
        void *data = arena_alloc(p->record->arena, bytes ? bytes : 1);
        memcpy(data, from, bytes);
        struct tensor_fact fact = {.step = step, .param = q->param, .kind = kind, .first_row = q->first_row, .rows = q->my_rows, .data = data,
            .unit = unit->part ? p->run->config->model.layers + 1 : unit->index,
            .replica = (layout->zero == ZERO_3 ? p->record->replicate : p->data_rank) + (unit->part ? p->context.data_ranks : 0)};
        struct hash hash;
        hash_init(&hash);
        hash_reals(&hash, data, count, storage);
        hash_finish(&hash, fact.digest);
        if (kind == TENSOR_GRADIENT) fact.terms_norm = terms_norm(p, unit, i);
        record_push(p->record, tensors, fact);
    }
}

void capture_params(struct program *p, int step)
{
    for (int i = 0; i < p->units_count; i++) capture(p, &p->units[i], step, TENSOR_PARAM);
}

/* ---- update ---- */

/* Returns how many elements were written. */
static int64_t update_param(struct program *p, struct unit *unit, int i, double coefficient)
{
    const struct train_config *train = &p->run->config->train;
    const struct ops *ops = p->run->ops;
    const struct unit_param *q = &unit->params[i];
    size_t count = (size_t)(q->my_rows * q->columns), offset = q->shard_at * format_storage_bytes(storage_of(p));
    char *values = (char *)unit->shard + offset, *moment1 = (char *)unit->moment1 + offset, *moment2 = (char *)unit->moment2 + offset;
    const char *gradient = (const char *)unit->grad_shard + offset;
    if (train->optimizer == OPTIMIZER_ADAMW) {
        ops->adamw_update(values, gradient, moment1, moment2, count, coefficient, train->lr, train->beta1, train->beta2, train->eps,
                          train->weight_decay, unit->updates + 1);
    } else {
        ops->sgd_update(values, gradient, train->momentum != 0 ? moment1 : NULL, count, coefficient, train->lr, train->momentum,
                        train->weight_decay, unit->updates + 1);
    }
    return (int64_t)count;
}

static void update(struct program *p, struct unit *unit, double coefficient)
{
    enum format storage = storage_of(p);
    struct where where = program_where(p, -1, unit->index);
    bool has_gradient = unit->grad_shard_ledger.count > 0; /* as PyTorch: a parameter without one is left alone */
    bool any = false;
    for (int i = 0; i < unit->count; i++) {
        const struct unit_param *q = &unit->params[i];
        where.param = p->run->params.params[q->param].info.name;
        struct update_fact fact = {.step = p->step, .unit = unit->part ? p->run->config->model.layers + 1 : unit->index,
                                   .param = q->param, .elements = q->my_rows * q->columns};
        int64_t written = 0;
        bool owns = decision_site(p->run->plan, &site_optimizer_owns, where, true, true);
        if (owns && has_gradient) {
            written += update_param(p, unit, i, coefficient);
            fact.updates = fact.elements > 0 ? (int)(written / fact.elements) : 1;
            any = true;
        }
        tensor_site(p->run->plan, &site_optimizer_update, where,
                    tensor_1d((char *)unit->shard + q->shard_at * format_storage_bytes(storage), storage, fact.elements));
        fact.version = any ? p->step + 1 : unit->shard_version.terms[0].origin.step;
        record_push(p->record, updates, fact);
    }
    unit->updates += any;
    if (any) { /* the stamp goes with the writing: what was not updated keeps the old one */
        ledger_clear(&unit->shard_version);
        ledger_add_term(&unit->shard_version, (struct origin){p->step + 1, unit->sharded ? p->context.shard_group->me : 0, -1, unit->index}, 1, 1);
        if (!unit->sharded) ledger_copy(&unit->full_version, &unit->shard_version);
    }
    memset(unit->grad_shard, 0, (unit->shard_count + unit->probe_count) * format_storage_bytes(storage));
    ledger_clear(&unit->grad_shard_ledger);
}

/* The loss that is printed: the mean over data ranks of D * their part, as the convention makes it (stages without a
 * loss count nothing, and take the last stage's figure, in the format that the convention sends it in). */
static void report(struct program *p)
{
    struct where where = program_where(p, -1, -1);
    double logged = p->is_last ? p->report * p->context.data_ranks : 0;
    struct comm how = {.site = &site_loss_report_reduce, .where = where};
    struct comm down = {.site = &site_loss_report_broadcast, .where = where};
    struct buffer buffer = {&logged, 1, FORMAT_FP64, FORMAT_FP64, NULL};
    all_reduce(p->communicator, p->dp, &how, buffer, REDUCE_AVG);
    buffer.wire = loss_convention_of(p->run->config)->logged_format;
    broadcast(p->communicator, p->pp, &down, buffer, p->pp->size - 1);
    double scale = factor_site(p->run->plan, &site_metrics_loss, where, 1, &p->numbers);
    struct report_fact fact = {p->step, logged * scale, scale};
    record_push(p->record, reports, fact);
}

void step_finish(struct program *p)
{
    flush(p);
    for (int i = 0; i < p->units_count; i++) keep_unreduced(p, &p->units[i]);
    reduce_tied(p);
    grad_scale(p);
    for (int i = 0; i < p->units_count; i++) {
        unit_record_gradient(&p->units[i], &p->context, p->step, -1, GRADIENT_REDUCED);
        capture(p, &p->units[i], p->step, TENSOR_GRADIENT);
    }
    double coefficient = clip(p);
    for (int i = 0; i < p->units_count; i++) update(p, &p->units[i], coefficient);
    capture_params(p, p->step);
    report(p);
}
