/* train: sets up a run, lets the machine run every rank's program, and closes the record. */
#include "model/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "model/loss_convention.h"
#include "model/program.h"
#include "model/safetensors.h"
#include "sim/assertion.h"
#include "sim/coroutine.h"
#include "sim/hash.h"

/* Time of the whole run, for `performance` alone; nothing else may look at a clock. */
static double clock_s(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

struct run_clock run_clock_now(void)
{
    return (struct run_clock){clock_s(CLOCK_MONOTONIC), clock_s(CLOCK_PROCESS_CPUTIME_ID)};
}

static struct mesh make_mesh(const struct layout *layout)
{
    return (struct mesh){.axes = 5, .name = {"pp", "dp_replicate", "dp_shard", "cp", "tp"},
                         .size = {layout->pp, layout->dp_replicate, layout->dp_shard, layout_cp(layout), layout->tp}};
}

static bool *frozen_params(const struct record *record);

static struct record *record_new(const struct run_config *config)
{
    struct record *record = memory_zalloc(sizeof *record);
    const struct layout *layout = &config->layout;
    record->config = *config;
    record->arena = arena_new("record", false);
    record->ranks = layout_ranks(layout);
    record->mesh = make_mesh(layout);
    record->params = param_table_of_run(config, record->arena);
    record->frozen = frozen_params(record);
    record->rank = arena_zalloc(record->arena, (size_t)record->ranks * sizeof *record->rank);
    for (int r = 0; r < record->ranks; r++) {
        struct rank_record *rank = &record->rank[r];
        rank->rank = r;
        rank->stage = mesh_coordinate(&record->mesh, r, "pp");
        rank->replicate = mesh_coordinate(&record->mesh, r, "dp_replicate");
        rank->cp = mesh_coordinate(&record->mesh, r, "cp");
        rank->shard = mesh_coordinate(&record->mesh, r, "dp_shard") * layout_cp(layout) + rank->cp;
        rank->tp = mesh_coordinate(&record->mesh, r, "tp");
        rank->data_rank = (rank->replicate * layout_shards(layout) + rank->shard) / layout_shards_alike(layout);
        rank->arena = arena_new("rank record", false);
    }
    return record;
}

struct initial { enum format storage; uint64_t seed; struct arena *arena; void **values; };

struct initial *initial_new(const struct run_config *config, struct error *error)
{
    const struct model_config *model = &config->model;
    struct initial *initial = memory_zalloc(sizeof *initial);
    initial->storage = run_storage(config);
    initial->seed = config->seed;
    initial->arena = arena_new("initial values", false);
    struct param_table params = param_table_new(model, initial->arena);
    initial->values = arena_zalloc(initial->arena, (size_t)params.count * sizeof *initial->values);
    struct safetensors *file = model->weights[0] ? safetensors_open(model->weights, error) : NULL;
    bool good = !model->weights[0] || file;
    for (int i = 0; good && i < params.count; i++) {
        const struct param *p = &params.params[i];
        struct tensor into = p->info.dims == 1 ? tensor_1d(NULL, initial->storage, p->rows)
                                               : tensor_2d(NULL, initial->storage, p->rows, p->columns);
        into.data = initial->values[i] = arena_alloc(initial->arena, (size_t)tensor_bytes(into));
        if (file) good = safetensors_read(file, p->info.name, p->info.dims, p->info.shape, into, error);
        else param_initial(&p->info, model, config->seed, into);
    }
    safetensors_close(file);
    if (good) return initial;
    initial_free(initial);
    return NULL;
}

void *const *initial_values(const struct initial *initial)
{
    return initial->values;
}

void initial_free(struct initial *initial)
{
    if (!initial) return;
    arena_free(initial->arena);
    free(initial);
}

static bool pattern_matches(const char *pattern, size_t length, const char *name)
{
    if (length > 0 && pattern[length - 1] == '*') return !strncmp(pattern, name, length - 1);
    return strlen(name) == length && !strncmp(pattern, name, length);
}

bool train_is_frozen(const struct train_config *train, const char *name)
{
    const char *list = train->frozen;
    while (*list) {
        size_t length = strcspn(list, ",");
        if (length > 0 && pattern_matches(list, length, name)) return true;
        list += length + (list[length] == ',');
    }
    return false;
}

static bool *frozen_params(const struct record *record)
{
    bool *frozen = arena_zalloc(record->arena, (size_t)record->params.count * sizeof *frozen);
    for (int i = 0; i < record->params.count; i++)
        frozen[i] = train_is_frozen(&record->config.train, record->params.params[i].info.name);
    return frozen;
}

static void count_valid(struct record *record, const struct data *data)
{
    int64_t *valid = arena_alloc(record->arena, (size_t)record->config.train.steps * sizeof *valid);
    int batch = record->config.train.global_batch;
    for (int s = 0; s < record->config.train.steps; s++) valid[s] = data_count(data, (int64_t)s * batch, batch).valid;
    record->valid_due = valid;
    record->steps_due = record->config.train.steps;
    loss_fill_cells(record, data);
}

double train_message_cost_s(void *context, int source, int destination, size_t bytes)
{
    const struct machine_config *m = context;
    bool inside = source / m->ranks_per_node == destination / m->ranks_per_node;
    return 1e-6 * (inside ? m->intra_latency_us : m->inter_latency_us) +
           (double)bytes / (1e9 * (inside ? m->intra_gb_per_s : m->inter_gb_per_s));
}

void train_copy_deadlock(struct record *record, const struct deadlock *from)
{
    struct arena *arena = record->arena;
    record->deadlock = *from;
    record->deadlock.blocked = arena_alloc(arena, (size_t)(from->blocked_count + 1) * sizeof *from->blocked);
    memcpy(record->deadlock.blocked, from->blocked, (size_t)from->blocked_count * sizeof *from->blocked);
    record->deadlock.cycle = arena_alloc(arena, (size_t)(from->cycle_count + 1) * sizeof(int));
    memcpy(record->deadlock.cycle, from->cycle, (size_t)from->cycle_count * sizeof(int));
}

static void digest_rank(struct hash *hash, const struct rank_record *rank)
{
    for (int i = 0; i < rank->losses.count; i++) {
        const struct loss_fact *f = &rank->losses.items[i];
        hash_f64(hash, f->loss_sum);
        hash_f64(hash, f->backward_loss);
        hash_reals(hash, f->token_loss, (size_t)f->token_count, FORMAT_FP64);
    }
    for (int i = 0; i < rank->reports.count; i++) hash_f64(hash, rank->reports.items[i].logged);
    for (int i = 0; i < rank->norms.count; i++) hash_f64(hash, rank->norms.items[i].norm);
    for (int i = 0; i < rank->tensors.count; i++) {
        hash_u64(hash, rank->tensors.items[i].digest[0]);
        hash_u64(hash, rank->tensors.items[i].digest[1]);
    }
    for (int i = 0; i < rank->finites.count; i++) hash_u64(hash, rank->finites.items[i].said);
    for (int i = 0; rank->communicator && i < communicator_traffic_count(rank->communicator); i++) {
        const struct traffic *t = communicator_traffic(rank->communicator, i);
        hash_text(hash, t->purpose);
        hash_text(hash, t->op);
        hash_u64(hash, t->count);
        hash_u64(hash, t->messages);
        hash_u64(hash, t->bytes);
    }
}

static void close_record(struct record *record, struct machine *machine)
{
    struct hash hash;
    hash_init(&hash);
    hash_u64(&hash, (uint64_t)record->outcome);
    for (int r = 0; r < record->ranks; r++) digest_rank(&hash, &record->rank[r]);
    hash_finish(&hash, record->digest);
    if (record->outcome == MACHINE_DEADLOCK) train_copy_deadlock(record, machine_deadlock(machine));
    record->unreceived = machine_unreceived(machine, record->unreceived_text, sizeof record->unreceived_text);
    record->machine = machine;
}

struct record *train_run(const struct run_config *config, struct site_plan *plan, const struct train_options *options, struct error *error)
{
    double start_s = clock_s(CLOCK_MONOTONIC), start_cpu_s = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    struct record *record = record_new(config);
    struct run run = {.config = &record->config, .options = options, .plan = plan, .record = record, .mesh = record->mesh,
                      .params = record->params, .schedule = schedule_find(config->layout.schedule)};
    ASSERT(run.schedule);
    run.ops = ops_get(run_storage(config), options->cpu_path, options->gemm ? options->gemm : "fixed", error);
    struct initial *own = run.ops && !options->initial ? initial_new(config, error) : NULL;
    const struct initial *initial = options->initial ? options->initial : own;
    if (!run.ops || !initial) {
        record_free(record);
        return NULL;
    }
    ASSERT(initial->storage == run.ops->storage && initial->seed == config->seed);
    run.initial = initial->values;
    run.data = data_pack(&config->data, config->model.seq, (int64_t)config->train.steps * config->train.global_batch, record->arena);
    count_valid(record, &run.data);
    run.programs = arena_zalloc(record->arena, (size_t)record->ranks * sizeof(struct program *));
    struct machine_options machine_options = {.ranks = record->ranks, .threads = options->threads, .interleave = options->interleave,
        .trace = options->trace, .plan = plan, .message_cost_s = train_message_cost_s, .cost_context = &record->config.machine,
        .coroutine = options->coroutine, .stop = options->stop};
    struct machine *machine = machine_new(&machine_options, error);
    if (!machine) {
        initial_free(own);
        record_free(record);
        return NULL;
    }
    record->outcome = machine_run(machine, program_main, &run, error);
    for (int r = 0; r < record->ranks; r++) program_free(run.programs[r]);
    initial_free(own);
    record->cpu_path = run.ops->cpu_path;
    record->gemm = run.ops->gemm_name;
    record->openblas_core = strcmp(run.ops->gemm_name, "openblas") ? NULL : ops_openblas_core();
    record->coroutine = coroutine_backend(options->coroutine);
    close_record(record, machine);
    record->wall_s = clock_s(CLOCK_MONOTONIC) - start_s;
    record->cpu_s = clock_s(CLOCK_PROCESS_CPUTIME_ID) - start_cpu_s;
    if (!error_is_set(error)) return record;
    record_free(record);
    return NULL;
}
