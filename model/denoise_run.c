/* denoise_run: one rank's program and the record. Sums in the order of the layers; x + y / iterations is rounded to the residual
 * stream's format. */
#include "model/denoise_run.h"

#include <stdio.h>
#include <string.h>

#include "model/context/context.h"
#include "model/deviations.h"
#include "model/plugin/plugin.h"
#include "model/precision.h"
#include "model/rank_open.h"
#include "model/vectors.h"
#include "sim/assertion.h"
#include "sim/coroutine.h"
#include "sim/hash.h"
#include "sim/random.h"

struct denoise_program { int iteration, layer; struct arena *scratch, *layer_arena; struct context_ledgers *ledgers; };
struct denoise_state {
    const struct run_config *config;
    struct site_plan *plan;
    const struct train_options *options;
    const struct ops *ops;
    struct record *record;
    struct tensor **weights;               /* [layers]: of each in the order of layer_params */
    struct tensor ones;                    /* [dim] */
    struct factor_numbers numbers;
    struct denoise_program *programs;      /* [ranks] */
};

static void describe(const struct rank *rank, char *text, size_t size)
{
    const struct denoise_program *p = rank_program(rank);
    if (p) snprintf(text, size, "iteration %d, layer %d", p->iteration, p->layer);
    else snprintf(text, size, "before its program");
}

/* ---- what all ranks have ---- */

static void load_weights(struct denoise_state *s, const struct initial *initial)
{
    const struct run_config *config = s->config;
    struct arena *arena = s->record->arena;
    struct param_table table = param_table_new(&config->model, arena);
    s->weights = arena_zalloc(arena, (size_t)config->model.layers * sizeof *s->weights);
    for (int layer = 0; layer < config->model.layers; layer++) {
        int at = 0;
        s->weights[layer] = arena_zalloc(arena, (size_t)table.count * sizeof(struct tensor));
        for (int i = 0; i < table.count; i++) {
            const struct param *p = &table.params[i];
            if (p->unit != layer + 1) continue;
            struct tensor t = p->info.dims == 1 ? tensor_1d(NULL, s->ops->storage, p->rows) : tensor_2d(NULL, s->ops->storage, p->rows, p->columns);
            t.data = arena_alloc(arena, (size_t)tensor_bytes(t));
            memcpy(t.data, initial_values(initial)[i], (size_t)tensor_bytes(t));
            tensor_round(t, config->precision.master);
            tensor_round(t, config->precision.param);
            s->weights[layer][at++] = t;
        }
    }
    s->ones = tensor_1d(arena_alloc(arena, (size_t)config->model.dim * format_storage_bytes(s->ops->storage)), s->ops->storage, config->model.dim);
    for (int c = 0; c < config->model.dim; c++) format_set(s->ones.data, (size_t)c, s->ops->storage, 1);
}

/* ---- one rank ---- */

static void draw_latents(const struct denoise_state *s, struct tensor x, const int32_t *positions, int64_t first, int64_t batch, int64_t rows)
{
    struct random_stream stream = random_stream(s->config->seed, "denoise.latents");
    int64_t dim = s->config->model.dim;
    for (int64_t i = 0; i < batch * rows; i++) {
        uint64_t at = (uint64_t)(((first + i / rows) * s->config->model.seq + positions[i]) * dim);
        for (int64_t c = 0; c < dim; c++)
            format_set(x.data, (size_t)(i * dim + c), x.storage, format_round(FORMAT_FP32, random_normal_at(&stream, at + (uint64_t)c)));
    }
    tensor_round(x, s->config->precision.residual);
}

static void keep_latents(struct rank_record *record, int iteration, struct tensor x, const int32_t *positions, int64_t rows)
{
    struct latent_fact fact = {.step = iteration, .rows = rows, .positions = positions};
    void *values = arena_alloc(record->arena, (size_t)tensor_bytes(x) + 1);
    memcpy(values, x.data, (size_t)tensor_bytes(x));
    fact.values = values;
    record_push(record, latents, fact);
}

static void step(const struct denoise_state *s, struct layer_context *context, struct denoise_program *p, struct tensor x, struct tensor room[2], struct tensor rstd)
{
    struct tensor in = x;
    for (int layer = 0; layer < s->config->model.layers; layer++) {
        struct tensor out = room[layer % 2];
        p->layer = context->layer = context->where.layer = layer;
        layer_forward(context, out, in, s->weights[layer], p->layer_arena);
        tensor_round(out, s->config->precision.residual);
        arena_reset(p->layer_arena);
        in = out;
    }
    struct tensor normed = room[s->config->model.layers % 2];
    s->ops->rmsnorm_forward(normed, rstd, in, s->ones, s->config->model.norm_eps);
    s->ops->vector_scale(normed.data, 1.0 / s->config->iterations, (size_t)tensor_count(normed));
    s->ops->vector_add(x.data, x.data, normed.data, (size_t)tensor_count(x));
    tensor_round(x, s->config->precision.residual);
}

static struct tensor matrix(struct arena *arena, enum format storage, int64_t rows, int64_t columns)
{
    struct tensor t = tensor_2d(NULL, storage, rows, columns);
    t.data = arena_alloc(arena, (size_t)tensor_bytes(t) + 1);
    return t;
}

static void denoise_main(struct rank *rank, void *argument)
{
    struct denoise_state *s = argument;
    const struct run_config *config = s->config;
    const struct model_config *m = &config->model;
    struct rank_record *record = &s->record->rank[rank_id(rank)];
    struct denoise_program *p = &s->programs[rank_id(rank)];
    struct arena *arena = rank_arena(rank, ARENA_RUN);
    *p = (struct denoise_program){0, 0, arena_new("scratch", true), arena_new("layer", true), context_ledgers_new()};
    rank_set_program(rank, p, describe);
    struct communicator *communicator = rank_open_communicator(rank, config, &s->record->mesh, s->options, record);
    struct context_parallel cp = rank_open_context(rank, config, communicator, p->ledgers);
    int size = cp.group->size;
    int64_t batch = config->attention.batch, rows = context_layout_rows(cp.layout, m->seq, size, cp.group->me), first = record->replicate * batch;
    int32_t *positions = arena_alloc(record->arena, (size_t)(batch * rows + 1) * sizeof *positions);
    for (int64_t b = 0; b < batch; b++) cp.layout->positions(m->seq, size, cp.group->me, NULL, positions + b * rows);
    struct tensor x = matrix(arena, s->ops->storage, batch * rows, m->dim), room[2] = {matrix(arena, s->ops->storage, batch * rows, m->dim), matrix(arena, s->ops->storage, batch * rows, m->dim)};
    struct tensor rstd = tensor_1d(arena_alloc(arena, (size_t)(batch * rows + 1) * 8), s->ops->storage, batch * rows);
    draw_latents(s, x, positions, first, batch, rows);
    struct layer_context context = {.model = m, .ops = s->ops, .precision = &config->precision, .batch = batch, .seq = rows, .positions = positions,
        .cp = size > 1 ? &cp : NULL, .whole_seq = m->seq, .scratch = p->scratch, .plan = s->plan, .where = WHERE_NONE, .record = record, .numbers = &s->numbers,
        .dropout = {.seed = config->seed, .sequences = batch}};
    context.where.rank = rank_id(rank);
    context.where.stage = context.where.microbatch = 0;
    bool deviates = s->plan && s->plan->armed_count > 0;
    for (p->iteration = 0; p->iteration < config->iterations; p->iteration++) {
        context.where.step = p->iteration;
        if (s->options->progress && rank_id(rank) == 0) s->options->progress(s->options->progress_context, p->iteration, config->iterations);
        step(s, &context, p, x, room, rstd);
        keep_latents(record, p->iteration, x, positions, batch * rows);
        if (!deviates) arena_reset(rank_arena(rank, ARENA_STEP));
    }
    record->unwaited = transport_unwaited(rank);
    record->time_s = rank_time_s(rank);
    record->busy_s = rank_busy_s(rank);
    record->activation_peak_bytes = record->peak_bytes = (int64_t)arena_used(arena) + (int64_t)arena_peak(p->scratch) + (int64_t)arena_peak(p->layer_arena);
}

/* ---- the record ---- */

static struct record *record_new(const struct run_config *config)
{
    struct record *record = memory_zalloc(sizeof *record);
    record->config = *config;
    record->arena = arena_new("record", false);
    record->mesh = (struct mesh){.axes = 2, .name = {"dp_replicate", "cp"}, .size = {config->layout.dp_replicate, layout_cp(&config->layout)}};
    record->ranks = mesh_ranks(&record->mesh);
    record->rank = arena_zalloc(record->arena, (size_t)record->ranks * sizeof *record->rank);
    for (int r = 0; r < record->ranks; r++) {
        struct rank_record *rank = &record->rank[r];
        rank->rank = r;
        rank->replicate = mesh_coordinate(&record->mesh, r, "dp_replicate");
        rank->cp = mesh_coordinate(&record->mesh, r, "cp");
        rank->data_rank = r;
        rank->units = config->model.layers + 2;
        rank->arena = arena_new("rank record", false);
    }
    return record;
}

static void close_record(struct record *record)
{
    struct hash hash;
    hash_init(&hash);
    hash_u64(&hash, (uint64_t)record->outcome);
    for (int r = 0; r < record->ranks; r++) {
        const struct rank_record *rank = &record->rank[r];
        for (int i = 0; i < rank->latents.count; i++)
            hash_reals(&hash, rank->latents.items[i].values, (size_t)(rank->latents.items[i].rows * record->config.model.dim), run_storage(&record->config));
        for (int i = 0; rank->communicator && i < communicator_traffic_count(rank->communicator); i++) {
            const struct traffic *t = communicator_traffic(rank->communicator, i);
            hash_text(&hash, t->purpose);
            hash_u64(&hash, t->count);
            hash_u64(&hash, t->messages);
            hash_u64(&hash, t->bytes);
        }
    }
    hash_finish(&hash, record->digest);
}

struct record *denoise_run(const struct run_config *config, struct site_plan *plan, const struct train_options *options, struct error *error)
{
    struct run_clock start = run_clock_now();
    struct record *record = record_new(config);
    struct denoise_state state = {.config = &record->config, .plan = plan, .options = options, .record = record};
    state.ops = ops_get(run_storage(config), options->cpu_path, options->gemm ? options->gemm : "fixed", error);
    struct initial *own = state.ops && !options->initial ? initial_new(config, error) : NULL;
    const struct initial *initial = options->initial ? options->initial : own;
    struct machine_options machine_options = {.ranks = record->ranks, .threads = options->threads, .interleave = options->interleave, .trace = options->trace,
        .plan = plan, .message_cost_s = train_message_cost_s, .cost_context = &record->config.machine, .coroutine = options->coroutine, .stop = options->stop,
        .stack_bytes = config->plugin ? PLUGIN_STACK_BYTES : 0};
    struct machine *machine = state.ops && initial ? machine_new(&machine_options, error) : NULL;
    if (!machine) {
        initial_free(own);
        record_free(record);
        return NULL;
    }
    load_weights(&state, initial);
    initial_free(own);
    state.numbers = rank_open_numbers(&config->layout);
    state.programs = arena_zalloc(record->arena, (size_t)record->ranks * sizeof *state.programs);
    record->outcome = machine_run(machine, denoise_main, &state, error);
    for (int r = 0; r < record->ranks; r++) {
        arena_free(state.programs[r].scratch);
        arena_free(state.programs[r].layer_arena);
        context_ledgers_free(state.programs[r].ledgers);
    }
    record->cpu_path = state.ops->cpu_path;
    record->gemm = state.ops->gemm_name;
    record->openblas_core = strcmp(state.ops->gemm_name, "openblas") ? NULL : ops_openblas_core();
    record->coroutine = coroutine_backend(options->coroutine);
    if (record->outcome == MACHINE_DEADLOCK) train_copy_deadlock(record, machine_deadlock(machine));
    record->unreceived = machine_unreceived(machine, record->unreceived_text, sizeof record->unreceived_text);
    record->machine = machine;
    close_record(record);
    struct run_clock now = run_clock_now();
    record->wall_s = now.wall_s - start.wall_s;
    record->cpu_s = now.cpu_s - start.cpu_s;
    if (!error_is_set(error)) return record;
    record_free(record);
    return NULL;
}

struct run_config denoise_single(const struct run_config *config)
{
    struct run_config single = *config;
    single.attention.batch *= config->layout.dp_replicate;
    single.layout.dp_replicate = 1;
    single.layout.cp = 1;
    single.layout.context.ulysses = 1;
    return single;
}
