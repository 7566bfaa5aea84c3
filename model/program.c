/* program: set-up of a rank and its loop over steps and actions. */
#include "model/balance.h"
#include "model/experts.h"
#include "model/rank_open.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/assertion.h"

enum { TAG_FORWARD = 1, TAG_BACKWARD = 2 };

struct where program_where(const struct program *p, int microbatch, int unit)
{
    struct where where = WHERE_NONE;
    where.rank = rank_id(p->rank);
    where.stage = p->stage;
    where.step = p->step;
    where.microbatch = microbatch;
    where.layer = unit_layer_of(&p->run->config->model, unit);
    return where;
}

struct unit *program_unit(struct program *p, int index, int part)
{
    for (int i = 0; i < p->units_count; i++) {
        if (p->units[i].index == index && p->units[i].part == part) return &p->units[i];
    }
    return NULL;
}

/* ---- set-up ---- */

static void make_groups(struct program *p)
{
    const struct layout *layout = &p->run->config->layout;
    bool cp = layout_cp(layout) > 1;
    static const char *const model_axes[] = {"pp", "dp_shard", "tp"}, *const whole_axes[] = {"pp", "tp"}, *const all_axes[] = {"pp", "dp_shard", "cp", "tp"};
    p->pp = communicator_group(p->communicator, "pp");
    p->dp = sequence_group(p->communicator, &p->run->mesh, layout);
    if (layout_ep(layout) > 1 || layout->etp > 1)
        expert_groups(p->communicator, &p->run->mesh, layout, p->run->config->model.moe.experts, &p->expert_parallel);
    if (p->run->plan && layout_ep(layout) > 1) p->expert_parallel.map = arena_zalloc(rank_arena(p->rank, ARENA_RUN), sizeof(struct dispatch_map));
    /* The norm adds what each rank owns: shards and experts differ over dp_shard x cp, whole copies are counted once. */
    bool alike = layout->zero == ZERO_0 && layout_ep(layout) == 1;
    if (layout->tp > 1) {
        p->norm_group = alike ? communicator_group_over(p->communicator, "model", whole_axes, 2)
                             : communicator_group_over(p->communicator, "model", cp ? all_axes : model_axes, cp ? 4 : 3);
        p->tensor_parallel = (struct tensor_parallel){p->communicator, communicator_group(p->communicator, "tp")};
    } else {
        p->norm_group = alike ? p->pp : communicator_group_over(p->communicator, "model", cp ? all_axes : model_axes, cp ? 3 : 2);
    }
    static const char *const token_axes[] = {"dp_replicate", "dp_shard", "tp"}, *const all_token_axes[] = {"dp_replicate", "dp_shard", "cp", "tp"};
    p->counting = !layout_slices_sequences(layout) ? p->dp : cp ? communicator_group_over(p->communicator, "dp_cp_tp", all_token_axes, 4)
                                                                : communicator_group_over(p->communicator, "dp_tp", token_axes, 3);
    static const char *const data_axes[] = {"dp_replicate", "dp_shard"};
    if (cp) communicator_group_over(p->communicator, "dp", data_axes, 2); /* what a call would go over that leaves cp out */
    if (cp) communicator_group_over(p->communicator, "dp_shard", data_axes + 1, 1);
    if (cp || layout_slices_sequences(layout)) {
        static const char *const slice_axes[] = {"cp", "tp"};
        bool both = cp && layout_slices_sequences(layout);
        p->tokens = (struct tensor_parallel){p->communicator, both ? communicator_group_over(p->communicator, layout_token_group(layout), slice_axes, 2)
                                                                   : communicator_group(p->communicator, layout_token_group(layout))};
    }
    if (p->tied_apart && (p->is_first || p->is_last)) {
        int me = rank_id(p->rank), pair[2] = {mesh_rank_at(&p->run->mesh, me, "pp", 0),
                                              mesh_rank_at(&p->run->mesh, me, "pp", layout->pp - 1)};
        p->embedding = communicator_group_of(p->communicator, "embedding", pair, 2);
    }
}

/* Of context parallelism: whose rows are here, and how they meet the others. */
static void make_context(struct program *p)
{
    const struct layout *layout = &p->run->config->layout;
    int seq = p->run->config->model.seq, cp = layout_cp(layout);
    p->seq = seq;
    if (cp == 1) return;
    p->context_layout = context_layout_find(layout->context.layout);
    p->seq = context_layout_rows(p->context_layout, seq, cp, p->record->cp);
    p->context_parallel = rank_open_context(p->rank, p->run->config, p->communicator, context_ledgers_new());
}

static struct unit_groups dense_groups(struct program *p)
{
    return (struct unit_groups){shard_group(p->communicator, &p->run->config->layout), p->dp, p->record->shard, p->record->tp};
}

/* The experts that this rank takes for its own, in what it holds and in what it answers for. A place past the last one has
 * memory for as many, and no token is for them. */
static void take_place(struct program *p, const struct run_config *config)
{
    const struct layout *layout = &config->layout;
    int ep = layout_ep(layout);
    struct expert_place due = expert_place(layout, config->model.moe.experts, p->record->shard, p->record->tp);
    struct factor_numbers numbers = {.M = layout->microbatches, .D = layout_data_ranks(layout), .P = layout->pp, .C = layout_cp(layout), .T = layout->tp,
        .E = ep, .A = 1, .N = 1, .N_all = 1, .N_unshifted = 1, .n = 1, .n_rank = 1, .D_shard = layout->dp_shard, .D_replicate = layout->dp_replicate};
    p->experts_first = due.first;
    p->experts_count = due.count;
    if (ep == 1) return;
    double at = factor_site(p->run->plan, &site_ep_rank, program_where(p, -1, -1), due.me, &numbers);
    struct factor_fact fact = {&site_ep_rank, 0, -1, -1, at, 0, 0};
    record_push(p->record, factors, fact);
    int me = at >= 0 && at < 1e6 ? (int)at : 0;
    if (me < ep) p->experts_first = me * due.count;
    p->expert_parallel.first = me < ep ? p->experts_first : config->model.moe.experts;
    p->expert_parallel.count = me < ep ? due.count : 0;
}

static bool is_held(const struct program *p, int param)
{
    const struct param *q = &p->run->params.params[param];
    if (!unit_is_experts(&p->run->config->model, q->unit)) return record_has_param(p->run->record, p->record, param);
    return q->info.expert >= p->experts_first && q->info.expert < p->experts_first + p->experts_count;
}

static struct unit_groups experts_groups(struct program *p)
{
    const struct layout *layout = &p->run->config->layout;
    struct expert_place place = expert_place(layout, p->run->config->model.moe.experts, p->record->shard, p->record->tp);
    return (struct unit_groups){expert_shard_group(p->communicator, &p->run->mesh, layout), expert_data_group(p->communicator, &p->run->mesh, layout),
                                place.shard, place.tp_copy};
}

static void add_unit(struct program *p, int index, int part)
{
    const struct param_table *table = &p->run->params;
    int count = 0, *params = arena_alloc(p->context.arena, (size_t)table->count * sizeof *params);
    for (int i = 0; i < table->count; i++) {
        if (table->params[i].unit == index && (part || is_held(p, i))) params[count++] = i;
    }
    struct unit *unit = &p->units[p->units_count++];
    unit_init(unit, &p->context, index, part, params, count, table, p->run->record->frozen);
    unit->layer_first = unit->is_experts ? unit[-1].layer_first : params[0];
}

static void make_units(struct program *p)
{
    const struct run_config *config = p->run->config;
    int units = unit_count(&config->model);
    p->units = arena_zalloc(p->context.arena, (size_t)(gradient_unit_count(config) + 1) * sizeof *p->units);
    for (int u = 0; u < units; u++) {
        if (layout_stage_of_unit(&config->layout, &config->model, u) != p->stage) continue;
        if (p->record->units++ == 0) p->record->first_unit = u;
        add_unit(p, u, 0);
        int layer = unit_layer_of(&config->model, u);
        if (layer >= 0 && record_has_unit(p->run->record, p->record, unit_of_experts(&config->model, layer))) add_unit(p, unit_of_experts(&config->model, layer), 0);
    }
    if (p->tied_apart && p->is_last) add_unit(p, 0, 1);
    buckets_make(&p->context, p->units, p->units_count);
    for (int i = 0; i < p->units_count; i++) {
        unit_load(&p->units[i], &p->context, p->run->initial);
        unit_hold_rows(&p->units[i], &p->context, program_where(p, -1, p->units[i].index), &p->run->params);
    }
}

static struct program *program_new(struct rank *rank, const struct run *run)
{
    const struct run_config *config = run->config;
    const struct layout *layout = &config->layout;
    struct arena *arena = rank_arena(rank, ARENA_RUN);
    struct program *p = arena_zalloc(arena, sizeof *p);
    int id = rank_id(rank);
    p->rank = rank;
    p->run = run;
    p->record = &run->record->rank[id];
    p->stage = p->record->stage;
    p->data_rank = p->record->data_rank;
    p->is_first = p->stage == 0;
    p->is_last = p->stage == layout->pp - 1;
    p->tied_apart = config->model.tie_embeddings && layout->pp > 1;
    p->communicator = rank_open_communicator(rank, config, &run->mesh, run->options, p->record);
    make_groups(p);
    make_context(p);
    take_place(p, config);
    p->context = (struct unit_context){.communicator = p->communicator, .ops = run->ops, .plan = run->plan, .dense = dense_groups(p), .experts = experts_groups(p),
        .replicate_group = communicator_group(p->communicator, "dp_replicate"), .config = config, .watch = run->options->watch, .record = p->record, .arena = arena,
        .data_rank = p->data_rank, .data_ranks = layout_data_ranks(layout), .microbatches = layout->microbatches};
    make_units(p);
    balance_begin(p);
    schedule_lower(run->schedule, layout->pp, layout->microbatches, p->stage, layout->send_sync, run->plan, id, &p->actions);
    for (int i = 0; i < p->actions.count; i++) p->record->receives_planned += p->actions.actions[i].kind == ACTION_RECV_F;
    p->microbatches = arena_zalloc(arena, (size_t)(layout->microbatches + 1) * sizeof *p->microbatches);
    p->arena_pool = arena_zalloc(arena, (size_t)(layout->microbatches + 1) * sizeof(struct arena *));
    p->scratch = arena_new("scratch", false);
    loss_scale_begin(p);
    return p;
}

void program_free(struct program *p)
{
    if (!p) return;
    for (int i = 0; i < p->units_count; i++) unit_done(&p->units[i]);
    buckets_done(p->context.buckets, p->context.buckets_count);
    for (int m = 0; p->microbatches && m <= p->run->config->layout.microbatches; m++) {
        arena_free(p->microbatches[m].arena);
        ledger_done(&p->microbatches[m].grad_ledger);
    }
    for (int i = 0; i < p->arena_pool_count; i++) arena_free(p->arena_pool[i]);
    arena_free(p->scratch);
    ledger_done(&p->middle_ledger);
    context_ledgers_free(p->context_parallel.ledgers);
    action_list_free(&p->actions);
    free(p->sends);
}

/* ---- where it stands ---- */

void program_describe(const struct rank *rank, char *text, size_t size)
{
    const struct program *p = rank_program(rank);
    if (!p) {
        snprintf(text, size, "before its program");
    } else if (p->action < p->actions.count) {
        struct action a = p->actions.actions[p->action];
        int peer = a.kind == ACTION_SEND_F || a.kind == ACTION_RECV_B ? p->stage + 1 : p->stage - 1;
        bool talks = a.kind >= ACTION_SEND_F;
        int used = snprintf(text, size, "step %d, action %d of %d: %s of micro-batch %d on stage %d", p->step, p->action + 1,
                            p->actions.count, action_names[a.kind], a.microbatch, p->stage);
        if (talks && used > 0 && (size_t)used < size) {
            bool sends = a.kind == ACTION_SEND_F || a.kind == ACTION_SEND_B;
            snprintf(text + used, size - (size_t)used, " %s stage %d", sends ? "to" : "from", peer);
        }
    } else {
        snprintf(text, size, "step %d, after its last action: reductions and optimizer", p->step);
    }
}

/* ---- actions ---- */

/* On the wire in the residual stream's format. */
static struct buffer activations(const struct program *p, struct tensor t, size_t probes, struct ledger *ledger)
{
    return (struct buffer){t.data, (size_t)tensor_count(t) + probes, t.storage, p->run->config->precision.residual, ledger};
}

static struct tensor activation_buffer(struct program *p, struct microbatch *mb)
{
    const struct run_config *config = p->run->config;
    int64_t rows = layout_sequences_per_microbatch(config) * program_slice_seq(p);
    enum format storage = p->run->ops->storage;
    size_t bytes = (size_t)(rows * config->model.dim) * format_storage_bytes(storage);
    return tensor_2d(arena_alloc(mb->arena, bytes), storage, rows, config->model.dim);
}

static void keep_send(struct program *p, struct transfer *transfer)
{
    if (p->sends_count == p->sends_capacity) {
        p->sends_capacity = p->sends_capacity ? 2 * p->sends_capacity : 16;
        p->sends = memory_realloc(p->sends, (size_t)p->sends_capacity * sizeof(struct transfer *));
    }
    p->sends[p->sends_count++] = transfer;
}

static void send_to(struct program *p, const struct comm *how, struct buffer buffer, int stage, uint32_t tag)
{
    bool sync = p->run->config->layout.send_sync;
    struct transfer *transfer = send_start(p->communicator, p->pp, how, buffer, stage, tag, sync ? SEND_SYNC : SEND_ASYNC);
    if (sync) send_wait(p->communicator, transfer);
    else keep_send(p, transfer);
}

static void receive_activation(struct program *p, int microbatch)
{
    if (microbatch < p->run->config->layout.microbatches) stage_draw(p, microbatch); /* there are no others to draw */
    struct microbatch *mb = stage_open(p, microbatch);
    struct comm how = {.site = &site_pp_send_activation, .where = program_where(p, microbatch, -1)};
    mb->input = activation_buffer(p, mb);
    memory_poison(mb->input.data, (size_t)tensor_bytes(mb->input));
    receive(p->communicator, p->pp, &how, activations(p, mb->input, 0, NULL), p->stage - 1, TAG_FORWARD);
    tensor_site(p->run->plan, &site_pp_stage_input, how.where, mb->input);
}

static void receive_gradient(struct program *p, int microbatch)
{
    struct microbatch *mb = stage_open(p, microbatch);
    size_t probes = p->units[0].probe_count;
    struct comm how = {.site = &site_pp_send_grad, .where = program_where(p, microbatch, -1), .uncounted = probes};
    stage_receive_grad_buffer(p, mb);
    struct buffer buffer = activations(p, mb->output_grad, probes, &mb->grad_ledger);
    memory_poison(buffer.data, buffer.count * format_storage_bytes(buffer.storage));
    receive(p->communicator, p->pp, &how, buffer, p->stage + 1, TAG_BACKWARD);
}

static void run_action(struct program *p, struct action a)
{
    struct microbatch *mb = &p->microbatches[a.microbatch];
    struct comm how = {.where = program_where(p, a.microbatch, -1)};
    switch (a.kind) {
    case ACTION_RECV_F: receive_activation(p, a.microbatch); break;
    case ACTION_RECV_B: receive_gradient(p, a.microbatch); break;
    case ACTION_FORWARD:
        if (p->is_first) stage_draw(p, a.microbatch);
        stage_forward(p, a.microbatch);
        break;
    case ACTION_BACKWARD:
        stage_backward(p, a.microbatch);
        if (p->is_first) stage_close(p, a.microbatch);
        break;
    case ACTION_SEND_F:
        how.site = &site_pp_send_activation;
        send_to(p, &how, activations(p, mb->output, 0, NULL), p->stage + 1, TAG_FORWARD);
        break;
    case ACTION_SEND_B:
        how.site = &site_pp_send_grad;
        how.uncounted = p->units[0].probe_count;
        send_to(p, &how, activations(p, mb->input_grad, how.uncounted, &mb->grad_ledger), p->stage - 1, TAG_BACKWARD);
        stage_close(p, a.microbatch);
        break;
    }
}

static void report_progress(const struct program *p)
{
    const struct train_options *options = p->run->options;
    if (!options->progress || rank_id(p->rank) != 0) return;
    int64_t done = (int64_t)p->step * p->actions.count + p->action;
    options->progress(options->progress_context, done, (int64_t)p->run->config->train.steps * p->actions.count);
}

void program_main(struct rank *rank, void *argument)
{
    const struct run *run = argument;
    struct program *p = program_new(rank, run);
    run->programs[rank_id(rank)] = p;
    rank_set_program(rank, p, program_describe);
    capture_params(p, -1);
    for (p->step = 0; p->step < run->config->train.steps; p->step++) {
        step_begin(p);
        for (p->action = 0; p->action < p->actions.count; p->action++) {
            report_progress(p);
            run_action(p, p->actions.actions[p->action]);
        }
        for (int i = 0; i < p->sends_count; i++) send_wait(p->communicator, p->sends[i]);
        p->sends_count = 0;
        step_finish(p);
        arena_reset(rank_arena(rank, ARENA_STEP));
    }
    p->step--;
    p->record->unwaited = transport_unwaited(rank);
    p->record->time_s = rank_time_s(rank);
    p->record->busy_s = rank_busy_s(rank);
    p->record->activation_peak_bytes = p->activation_bytes;
    p->record->peak_bytes = p->record->param_bytes + p->record->grad_bytes + p->record->optimizer_bytes + p->activation_bytes;
}
