/* attention_run: the machine of the workload `attention`, and its record.
 *
 * Mesh: dp_replicate x cp, a group of cp ranks for each copy, with sequences of its own. A rank's program: rows at its
 * positions, forward, backward, keep. Both are in step 0, micro-batch 0, layer 0 (unit 1). */
#include "model/attention_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/context/context.h"
#include "model/deviations.h"
#include "model/plugin/plugin.h"
#include "model/precision.h"
#include "model/rank_open.h"
#include "sim/assertion.h"
#include "sim/coroutine.h"
#include "sim/hash.h"

enum { UNIT = 1 };
struct attention_state {
    const struct run_config *config;
    struct site_plan *plan;
    const struct train_options *options;
    const struct attention_inputs_data *inputs;
    const struct ops *ops;
    struct record *record;
    struct factor_numbers numbers;
    struct attention_program *programs;    /* [ranks]; what they own outlives a rank that is stuck */
};
struct attention_program { const char *doing; struct arena *scratch; struct context_ledgers *ledgers; };

static void describe(const struct rank *rank, char *text, size_t size)
{
    const struct attention_program *program = rank_program(rank);
    snprintf(text, size, "%s", program ? program->doing : "before its program");
}

/* ---- rows ---- */

/* Rows of a global [sequences, seq, width] at a rank's positions, in the run's storage. */
static struct tensor take_rows(const struct attention_state *s, const double *from, const int32_t *positions, int64_t first_sequence,
                               int64_t batch, int64_t rows, int heads, struct arena *arena)
{
    int64_t dim = s->inputs->head_dim, width = heads * dim;
    struct tensor t = tensor_4d(NULL, s->ops->storage, batch, rows, heads, dim);
    t.data = arena_alloc(arena, (size_t)tensor_bytes(t) + 1);
    for (int64_t i = 0; i < batch * rows; i++) {
        const double *row = from + ((first_sequence + i / (rows ? rows : 1)) * s->inputs->seq + positions[i]) * width;
        for (int64_t j = 0; j < width; j++) format_set(t.data, (size_t)(i * width + j), t.storage, row[j]);
    }
    return t;
}

static struct tensor like(const struct tensor *t, struct arena *arena)
{
    struct tensor made = *t;
    made.data = arena_alloc(arena, (size_t)tensor_bytes(made) + 1);
    memory_poison(made.data, (size_t)tensor_bytes(made));
    return made;
}

static const double *keep(struct rank_record *record, struct tensor t)
{
    size_t count = (size_t)tensor_count(t);
    double *kept = arena_alloc(record->arena, (count + 1) * sizeof *kept);
    for (size_t i = 0; i < count; i++) kept[i] = format_get(t.data, i, t.storage);
    return kept;
}

/* ---- one rank ---- */

static struct context_call call_new(const struct attention_state *s, const struct context_parallel *cp, struct rank *rank, struct rank_record *record)
{
    const struct run_config *config = s->config;
    const struct attention_inputs_data *in = s->inputs;
    struct where where = WHERE_NONE;
    where.rank = rank_id(rank);
    where.stage = where.step = where.microbatch = where.layer = 0;
    int64_t first = (int64_t)record->replicate * config->attention.batch;
    return (struct context_call){.cp = cp, .ops = s->ops, .activation = precision_activation(&config->precision), .softmax = config->precision.softmax,
        .batch = config->attention.batch, .seq = in->seq, .heads = (int)in->heads, .kv_heads = (int)in->kv_heads, .head_dim = (int)in->head_dim,
        .causal = config->model.causal, .window = config->model.window, .documents = in->documents ? in->documents + first * in->seq : NULL,
        .joint = config->attention.joint, .joint_place = config->attention.joint_rear ? JOINT_REAR : JOINT_FRONT,
        .plan = s->plan, .where = where, .unit = UNIT, .record = record, .numbers = &s->numbers, .kept = rank_arena(rank, ARENA_RUN),
        .scratch = s->programs[where.rank].scratch};
}

static void fill_call(const struct attention_state *s, struct context_call *call, const int32_t *positions, int64_t first, int64_t rows, struct arena *arena)
{
    const struct attention_inputs_data *in = s->inputs;
    call->q = take_rows(s, in->q, positions, first, call->batch, rows, call->heads, arena);
    call->k = take_rows(s, in->k, positions, first, call->batch, rows, call->kv_heads, arena);
    call->v = take_rows(s, in->v, positions, first, call->batch, rows, call->kv_heads, arena);
    call->out = like(&call->q, arena);
    call->lse = tensor_3d(NULL, s->ops->storage, call->batch, call->heads, rows);
    call->lse = like(&call->lse, arena);
    if (in->sinks) {
        call->sinks = tensor_1d(NULL, s->ops->storage, call->heads);
        call->sinks = like(&call->sinks, arena);
        for (int h = 0; h < call->heads; h++) format_set(call->sinks.data, (size_t)h, s->ops->storage, in->sinks[h]);
    }
    if (!s->config->attention.backward) return;
    call->d_out = take_rows(s, in->d_out, positions, first, call->batch, rows, call->heads, arena);
    call->dq = like(&call->q, arena);
    call->dk = like(&call->k, arena);
    call->dv = like(&call->v, arena);
    if (!in->sinks) return;
    call->d_sinks = like(&call->sinks, arena);
    memset(call->d_sinks.data, 0, (size_t)tensor_bytes(call->d_sinks));
}

static void rank_main_of(struct rank *rank, void *argument)
{
    const struct attention_state *s = argument;
    struct rank_record *record = &s->record->rank[rank_id(rank)];
    struct arena *arena = rank_arena(rank, ARENA_RUN);
    struct attention_program *program = &s->programs[rank_id(rank)];
    *program = (struct attention_program){"before its attention", arena_new("scratch", true), context_ledgers_new()};
    rank_set_program(rank, program, describe);
    struct communicator *communicator = rank_open_communicator(rank, s->config, &s->record->mesh, s->options, record);
    struct context_parallel cp = rank_open_context(rank, s->config, communicator, program->ledgers);
    struct context_call call = call_new(s, &cp, rank, record);
    int64_t rows = context_rows(&call, cp.group->me), first = (int64_t)record->replicate * call.batch;
    int32_t *positions = arena_alloc(record->arena, (size_t)(call.batch * rows + 1) * sizeof *positions);
    for (int64_t b = 0; b < call.batch; b++) context_positions(&call, cp.group->me, b, positions + b * rows);
    fill_call(s, &call, positions, first, rows, arena);
    program->doing = "in the attention's forward";
    context_forward(&call);
    if (s->config->attention.backward) {
        program->doing = "in the attention's backward";
        context_backward(&call);
    }
    program->doing = "behind its attention";
    struct attention_part *part = arena_zalloc(record->arena, sizeof *part);
    *part = (struct attention_part){.batch = call.batch, .rows = rows, .first_sequence = first, .positions = positions, .out = keep(record, call.out), .lse = plugin_left_lse(&call) ? NULL : keep(record, call.lse)};
    if (s->config->attention.backward) {
        part->dq = keep(record, call.dq);
        part->dk = keep(record, call.dk);
        part->dv = keep(record, call.dv);
        if (call.d_sinks.data) part->d_sinks = keep(record, call.d_sinks);
    }
    record->attention = part;
    record->unwaited = transport_unwaited(rank);
    record->time_s = rank_time_s(rank);
    record->busy_s = rank_busy_s(rank);
    record->activation_peak_bytes = record->peak_bytes = (int64_t)arena_used(arena) + (int64_t)arena_peak(call.scratch);
}

/* ---- the record ---- */

static struct record *record_new(const struct run_config *config)
{
    struct record *record = memory_zalloc(sizeof *record);
    const struct layout *layout = &config->layout;
    record->config = *config;
    record->arena = arena_new("record", false);
    record->mesh = (struct mesh){.axes = 2, .name = {"dp_replicate", "cp"}, .size = {layout->dp_replicate, layout_cp(layout)}};
    record->ranks = mesh_ranks(&record->mesh);
    record->rank = arena_zalloc(record->arena, (size_t)record->ranks * sizeof *record->rank);
    for (int r = 0; r < record->ranks; r++) {
        struct rank_record *rank = &record->rank[r];
        rank->rank = r;
        rank->replicate = rank->data_rank = mesh_coordinate(&record->mesh, r, "dp_replicate");
        rank->cp = mesh_coordinate(&record->mesh, r, "cp");
        rank->arena = arena_new("rank record", false);
    }
    return record;
}

static void digest_part(struct hash *hash, const struct rank_record *rank, const struct attention_inputs_data *in)
{
    const struct attention_part *p = rank->attention;
    for (int i = 0; rank->communicator && i < communicator_traffic_count(rank->communicator); i++) {
        const struct traffic *t = communicator_traffic(rank->communicator, i);
        hash_text(hash, t->purpose);
        hash_text(hash, t->op);
        hash_u64(hash, t->count);
        hash_u64(hash, t->messages);
        hash_u64(hash, t->bytes);
    }
    if (!p) return;
    size_t rows = (size_t)(p->batch * p->rows), wide = rows * (size_t)(in->heads * in->head_dim), narrow = rows * (size_t)(in->kv_heads * in->head_dim);
    hash_reals(hash, p->out, wide, FORMAT_FP64);
    if (p->lse) hash_reals(hash, p->lse, rows * (size_t)in->heads, FORMAT_FP64);
    if (p->dq) {
        hash_reals(hash, p->dq, wide, FORMAT_FP64);
        hash_reals(hash, p->dk, narrow, FORMAT_FP64);
        hash_reals(hash, p->dv, narrow, FORMAT_FP64);
    }
    if (p->d_sinks) hash_reals(hash, p->d_sinks, (size_t)in->heads, FORMAT_FP64);
}

static void close_record(struct record *record, const struct attention_inputs_data *in)
{
    struct hash hash;
    hash_init(&hash);
    hash_u64(&hash, (uint64_t)record->outcome);
    for (int r = 0; r < record->ranks; r++) digest_part(&hash, &record->rank[r], in);
    hash_finish(&hash, record->digest);
}

static void took(struct record *record, const struct run_clock *start)
{
    struct run_clock now = run_clock_now();
    record->wall_s = now.wall_s - start->wall_s;
    record->cpu_s = now.cpu_s - start->cpu_s;
}

struct record *attention_run(const struct run_config *config, struct site_plan *plan, const struct train_options *options,
                             const struct attention_inputs_data *inputs, struct error *error)
{
    struct run_clock start = run_clock_now();
    struct record *record = record_new(config);
    struct attention_state state = {.config = &record->config, .plan = plan, .options = options, .inputs = inputs, .record = record};
    state.ops = ops_get(run_storage(config), options->cpu_path, options->gemm ? options->gemm : "fixed", error);
    struct machine_options machine_options = {.ranks = record->ranks, .threads = options->threads, .interleave = options->interleave,
        .trace = options->trace, .plan = plan, .message_cost_s = train_message_cost_s, .cost_context = &record->config.machine,
        .coroutine = options->coroutine, .stop = options->stop,
        .stack_bytes = config->plugin ? PLUGIN_STACK_BYTES : 0};
    struct machine *machine = state.ops ? machine_new(&machine_options, error) : NULL;
    if (!machine) {
        record_free(record);
        return NULL;
    }
    state.numbers = rank_open_numbers(&config->layout);
    state.programs = arena_zalloc(record->arena, (size_t)record->ranks * sizeof *state.programs);
    record->outcome = machine_run(machine, rank_main_of, &state, error);
    for (int r = 0; r < record->ranks; r++) {
        arena_free(state.programs[r].scratch);
        context_ledgers_free(state.programs[r].ledgers);
    }
    record->cpu_path = state.ops->cpu_path;
    record->gemm = state.ops->gemm_name;
    record->openblas_core = strcmp(state.ops->gemm_name, "openblas") ? NULL : ops_openblas_core();
    record->coroutine = coroutine_backend(options->coroutine);
    if (record->outcome == MACHINE_DEADLOCK) train_copy_deadlock(record, machine_deadlock(machine));
    record->unreceived = machine_unreceived(machine, record->unreceived_text, sizeof record->unreceived_text);
    record->machine = machine;
    close_record(record, inputs);
    took(record, &start);
    if (!error_is_set(error)) return record;
    record_free(record);
    return NULL;
}

/* ---- on one rank ---- */

struct run_config attention_single(const struct run_config *config)
{
    struct run_config single = *config;
    single.attention.batch *= config->layout.dp_replicate;
    single.layout.dp_replicate = 1;
    single.layout.cp = 1;
    single.layout.context.ulysses = 1;
    return single;
}

static double *zeros(struct arena *arena, int64_t count)
{
    return arena_zalloc(arena, (size_t)(count + 1) * sizeof(double));
}

struct record *attention_standalone(const struct run_config *config, const struct train_options *options,
                                    const struct attention_inputs_data *in, struct error *error)
{
    struct run_clock start = run_clock_now();
    struct run_config single = attention_single(config);
    single.precision = precision_of(FORMAT_FP64);
    const struct ops *ops = ops_get(FORMAT_FP64, options->cpu_path, "fixed", error);
    if (!ops) return NULL;
    struct record *record = record_new(&single);
    struct arena *arena = record->rank[0].arena;
    int64_t rows = in->sequences * in->seq, wide = rows * in->heads * in->head_dim, narrow = rows * in->kv_heads * in->head_dim;
    bool gradients = config->attention.backward;
    struct attention_results r = {zeros(arena, wide), zeros(arena, rows * in->heads), zeros(arena, wide), zeros(arena, narrow), zeros(arena, narrow), zeros(arena, in->heads), zeros(arena, rows * in->heads), zeros(arena, rows * in->kv_heads), zeros(arena, in->heads), zeros(arena, rows * in->heads), zeros(arena, rows * in->heads), zeros(arena, rows * in->heads), zeros(arena, rows * in->kv_heads), zeros(arena, rows * in->kv_heads), zeros(arena, rows * in->kv_heads)};
    attention_reference(&single, ops, in, gradients, &r);
    struct attention_part *part = arena_zalloc(arena, sizeof *part);
    int32_t *positions = arena_alloc(arena, (size_t)(rows + 1) * sizeof *positions);
    for (int64_t i = 0; i < rows; i++) positions[i] = (int32_t)(i % in->seq);
    *part = (struct attention_part){.batch = in->sequences, .rows = in->seq, .positions = positions, .out = r.out, .lse = r.lse, .lse_terms = r.lse_terms, .out_logits = r.out_logits};
    if (gradients) {
        part->dq = r.dq;
        part->dk = r.dk;
        part->dv = r.dv;
        part->dq_terms = r.dq_terms;
        part->dk_terms = r.dk_terms;
        part->dv_terms = r.dv_terms;
        part->dq_logits = r.dq_logits;
        part->dk_logits = r.dk_logits;
        part->dv_logits = r.dv_logits;
        part->d_sinks = in->sinks ? r.d_sinks : NULL;
        part->sink_terms = r.sink_terms;
    }
    record->rank[0].attention = part;
    record->outcome = MACHINE_FINISHED;
    record->cpu_path = ops->cpu_path;
    record->gemm = ops->gemm_name;
    record->coroutine = coroutine_backend(options->coroutine);
    close_record(record, in);
    took(record, &start);
    return record;
}

bool attention_allowed(const struct run_config *config, char why[320])
{
    const struct layout *l = &config->layout;
    const struct model_config *m = &config->model;
    const struct context_method *method = context_method_of(config);
    struct context_shape shape = {.batch = config->attention.batch, .seq = m->seq, .joint = config->attention.joint, .size = layout_cp(l),
        .ulysses = l->context.ulysses > 1 ? l->context.ulysses : 1, .heads = m->heads, .kv_heads = m->kv_heads, .head_dim = m->head_dim, .causal = m->causal,
        .reversed = l->context.reversed, .overlap = l->context.overlap};
    struct error error = {0};
    if (method && method->allows && !method->allows(&shape, why)) return false;
    if (plugin_attention_fits(config->plugin, config, &error)) return true;
    snprintf(why, 320, "%.300s", error.message);
    return false;
}
