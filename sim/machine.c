/* machine: its life, and what a rank can ask and say about itself. The loop is in rounds.c.
 *
 * Coroutines are made with the machine, so that a lack of stacks shows before anything runs; threads
 * live for the time of machine_run. Ranks that are still parked after a deadlock or a stop are dropped
 * where they stand: their stacks go back, and all that they own hangs on their struct rank. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/assertion.h"
#include "sim/machine_internal.h"

enum { STACK_BYTES = 256 * 1024 };

static void *cache_zalloc(size_t bytes)
{
    size_t whole = (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
    void *data = aligned_alloc(CACHE_LINE, whole);
    if (!data)
        memory_failed(whole);
    return memset(data, 0, whole);
}

static void rank_run(void *argument)
{
    struct rank *rank = argument;
    rank->machine->main(rank, rank->machine->argument);
}

static bool ranks_new(struct machine *machine, struct error *error)
{
    for (int i = 0; i < machine->options.ranks; i++) {
        struct rank *rank = cache_zalloc(sizeof *rank);
        machine->ranks[i] = rank;
        rank->machine = machine;
        rank->id = i;
        rank->coroutine = coroutine_new(machine->stacks, rank_run, rank, error);
        if (!rank->coroutine)
            return false;
    }
    return true;
}

static void workers_new(struct machine *machine)
{
    int threads = machine->worker_count;
    size_t share = (size_t)(machine->options.ranks + threads - 1) / (size_t)threads;
    machine->workers = cache_zalloc((size_t)threads * sizeof *machine->workers);
    for (int w = 0; w < threads; w++) {
        struct worker *worker = &machine->workers[w];
        worker->machine = machine;
        worker->ready = memory_alloc(share * sizeof *worker->ready);
        atomic_init(&worker->epoch, 0);
        atomic_init(&worker->asleep, false);
        ASSERT(uv_mutex_init(&worker->mutex) == 0 && uv_cond_init(&worker->condition) == 0);
    }
    atomic_init(&machine->quit, false);
    atomic_init(&machine->loop_asleep, false);
    atomic_init(&machine->remaining, 0);
    ASSERT(uv_mutex_init(&machine->mutex) == 0 && uv_cond_init(&machine->condition) == 0);
}

struct machine *machine_new(const struct machine_options *options, struct error *error)
{
    ASSERT(options->ranks >= 1 && options->threads >= 1);
    struct machine *machine = cache_zalloc(sizeof *machine);
    int result = uv_loop_init(&machine->loop);
    if (result != 0) {
        error_input(error, "cannot make an event loop: %s", uv_strerror(result));
        error_hint(error, "it takes a few file descriptors; raise the limit on open files (ulimit -n)");
        free(machine);
        return NULL;
    }
    machine->options = *options;
    machine->worker_count = options->threads < options->ranks ? options->threads : options->ranks;
    machine->stacks = stack_pool_new(options->stack_bytes ? options->stack_bytes : STACK_BYTES, options->coroutine);
    machine->ranks = memory_zalloc((size_t)options->ranks * sizeof *machine->ranks);
    machine->words = ((size_t)options->ranks + 63) / 64;
    machine->ready = memory_zalloc(machine->words * sizeof *machine->ready);
    machine->running = memory_zalloc(machine->words * sizeof *machine->running);
    machine->texts = arena_new("machine", false);
    channel_table_init(&machine->channels);
    meeting_table_init(&machine->meetings);
    workers_new(machine);
    if (!ranks_new(machine, error)) {
        machine_free(machine);
        return NULL;
    }
    return machine;
}

static void rank_drop(struct rank *rank)
{
    coroutine_free(rank->coroutine);
    rank->coroutine = NULL;
}

static void rank_free(struct rank *rank)
{
    if (!rank)
        return;
    rank_drop(rank);
    while (rank->transfer_all) {
        struct transfer *transfer = rank->transfer_all;
        rank->transfer_all = transfer->next_of_rank;
        free(transfer);
    }
    message_pool_done(&rank->messages);
    trace_done(&rank->trace);
    for (int i = 0; i <= ARENA_SCRATCH; i++)
        arena_free(rank->arenas[i]);
    free(rank);
}

void machine_free(struct machine *machine)
{
    if (!machine)
        return;
    for (int i = 0; i < machine->options.ranks; i++)
        rank_free(machine->ranks[i]);
    for (int w = 0; w < machine->worker_count; w++) {
        uv_mutex_destroy(&machine->workers[w].mutex);
        uv_cond_destroy(&machine->workers[w].condition);
        free(machine->workers[w].ready);
    }
    uv_mutex_destroy(&machine->mutex);
    uv_cond_destroy(&machine->condition);
    ASSERT(uv_loop_close(&machine->loop) == 0);
    channel_table_done(&machine->channels);
    meeting_table_done(&machine->meetings);
    liveness_done(machine);
    arena_free(machine->texts);
    stack_pool_free(machine->stacks);
    free(machine->workers);
    free(machine->ready);
    free(machine->running);
    free(machine->ranks);
    free(machine);
}

enum machine_outcome machine_run(struct machine *machine, rank_main *main, void *argument, struct error *error)
{
    ASSERT_MESSAGE(!machine->ran, "a machine runs once");
    machine->ran = true;
    machine->main = main;
    machine->argument = argument;
    machine->outcome = MACHINE_STOPPED;
    if (workers_start(machine, error))
        rounds_run(machine);
    workers_stop(machine);
    if (machine->outcome == MACHINE_DEADLOCK)
        liveness_report(machine); /* before the stacks go: a describe callback may look at them */
    for (int i = 0; i < machine->options.ranks; i++)
        rank_drop(machine->ranks[i]);
    return machine->outcome;
}

const struct deadlock *machine_deadlock(const struct machine *machine)
{
    return machine->ran && machine->outcome == MACHINE_DEADLOCK ? &machine->deadlock : NULL;
}

int machine_ranks(const struct machine *machine)
{
    return machine->options.ranks;
}

struct rank *machine_rank(struct machine *machine, int id)
{
    ASSERT(id >= 0 && id < machine->options.ranks);
    return machine->ranks[id];
}

uint64_t machine_rounds(const struct machine *machine)
{
    return machine->rounds;
}

int machine_unreceived(const struct machine *machine, char *text, size_t size)
{
    const struct block *first;
    int count = channel_unreceived(&machine->channels, &first);
    if (size > 0)
        text[0] = '\0';
    if (!first)
        return count;
    const struct message *message = &first->message;
    const char *purpose = message->call.purpose ? message->call.purpose : "";
    snprintf(text, size, "rank %d to rank %d: %s%s%s in group %s, call %llu, tag %u, %zu bytes", message->source,
             message->destination, message->call.op ? message->call.op : "message", *purpose ? " " : "", purpose,
             message->call.group ? message->call.group : "", (unsigned long long)message->call.sequence,
             message->tag, message->bytes);
    return count;
}

/* ---- ranks ---- */

int rank_id(const struct rank *rank)
{
    return rank->id;
}

struct machine *rank_machine(const struct rank *rank)
{
    return rank->machine;
}

struct site_plan *rank_plan(const struct rank *rank)
{
    return rank->machine->options.plan;
}

/* Made at the first use, by the thread that uses it. */
struct arena *rank_arena(struct rank *rank, enum rank_arena which)
{
    static const char *const names[] = {"run", "step", "scratch"};
    if (!rank->arenas[which])
        rank->arenas[which] = arena_new(names[which], true);
    return rank->arenas[which];
}

void rank_set_program(struct rank *rank, void *program, rank_describe *describe)
{
    rank->program = program;
    rank->describe = describe;
}

void *rank_program(const struct rank *rank)
{
    return rank->program;
}

const char *rank_note(struct rank *rank, const char *note)
{
    const char *before = rank->note;
    rank->note = note;
    return before;
}

double rank_time_s(const struct rank *rank)
{
    return rank->time_s;
}

double rank_busy_s(const struct rank *rank)
{
    return rank->busy_s;
}

void rank_advance(struct rank *rank, double seconds)
{
    ASSERT(seconds >= 0);
    rank->time_s += seconds;
    rank->busy_s += seconds;
}

void rank_yield(struct rank *rank)
{
    ASSERT_MESSAGE(rank->state == RANK_RUNNING, "rank %d yields while it isn't running", rank->id);
    rank->state = RANK_YIELDED;
    coroutine_park(rank->coroutine);
}
