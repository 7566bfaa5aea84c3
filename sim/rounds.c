/* rounds: the machine's loop.
 *
 * One round:
 *   1. the ready set is dealt to the workers (rank modulo threads), each share in the order that the
 *      interleave asks for;
 *   2. every ready rank runs to its next park, or to its end (workers.c);
 *   3. merge, on the loop thread, by ascending rank: released messages go home, then the sends and the
 *      receives that were posted are matched in the order in which they were posted. A match completes
 *      a receive (and a synchronous send), and makes a rank ready that is parked on it.
 *   4. meetings that are due are computed, by all workers (jobs.c).
 * What a rank sees in a round was decided before the round began; so neither the order within a worker
 * nor the number of workers can reach a result. That holds for the number of rounds too.
 *
 * Rounds are driven by an idle handle, several for each turn of the loop: a turn polls the operating
 * system, which costs as much as a round. */
#include <stdlib.h>
#include <string.h>

#include "sim/assertion.h"
#include "sim/hash.h"
#include "sim/machine_internal.h"

enum { ROUNDS_PER_TURN = 16 };

/* ---- before a round ---- */

static int ready_compare(const void *left, const void *right)
{
    const struct ready *a = left, *b = right;
    if (a->key != b->key)
        return a->key < b->key ? -1 : 1;
    return (a->rank > b->rank) - (a->rank < b->rank);
}

static void round_deal(struct machine *machine)
{
    uint64_t interleave = machine->options.interleave;
    uint64_t round_key = hash_mix(hash_mix(interleave) + machine->rounds);
    int threads = machine->worker_count;
    for (int w = 0; w < threads; w++)
        machine->workers[w].ready_count = 0;
    for (size_t i = 0; i < machine->words; i++) {
        for (uint64_t word = machine->running[i]; word; word &= word - 1) {
            int rank = (int)i * 64 + __builtin_ctzll(word);
            struct worker *worker = &machine->workers[rank % threads];
            uint64_t key = interleave ? hash_mix(round_key ^ (uint64_t)rank) : 0;
            worker->ready[worker->ready_count++] = (struct ready){key, rank};
        }
    }
    if (interleave) {
        for (int w = 0; w < threads; w++) {
            struct worker *worker = &machine->workers[w];
            qsort(worker->ready, (size_t)worker->ready_count, sizeof *worker->ready, ready_compare);
        }
    }
}

/* ---- in a round, on any worker ---- */

void worker_run_ranks(struct worker *worker)
{
    for (int i = 0; i < worker->ready_count; i++) {
        struct rank *rank = worker->machine->ranks[worker->ready[i].rank];
        rank->state = RANK_RUNNING;
        coroutine_resume(rank->coroutine);
        if (coroutine_ended(rank->coroutine))
            rank->state = RANK_ENDED;
    }
}

/* ---- after a round ---- */

static void transfer_finish(struct machine *machine, struct transfer *transfer, double done_s)
{
    struct rank *rank = transfer->rank;
    ASSERT(transfer->state == TRANSFER_POSTED);
    transfer->state = TRANSFER_DONE;
    transfer->done_s = done_s;
    if (rank->waiting == transfer) {
        rank->waiting = NULL;
        rank->state = RANK_READY;
        rank_set_add(machine->ready, rank->id);
    }
}

static void match(struct machine *machine, struct block *block, struct transfer *receive)
{
    block->state = BLOCK_HELD;
    receive->block = block;
    transfer_finish(machine, receive, block->message.arrival_s);
    if (block->sync)
        transfer_finish(machine, block->sync, receive->posted_s);
    block->sync = NULL;
}

static void merge_sends(struct machine *machine, struct rank *rank)
{
    const struct machine_options *options = &machine->options;
    struct block *block = rank->sends.first;
    rank->sends = (struct block_list){0};
    while (block) {
        struct block *next = block->next;
        if (options->message_cost_s) {
            block->message.arrival_s += options->message_cost_s(options->cost_context, rank->id,
                                                                block->message.destination, block->accounted_bytes);
        }
        struct transfer *receive = channel_send(&machine->channels, block);
        if (receive)
            match(machine, block, receive);
        block = next;
    }
}

static void merge_receives(struct machine *machine, struct rank *rank)
{
    struct transfer *receive = rank->receives.first;
    rank->receives = (struct transfer_list){0};
    while (receive) {
        struct transfer *next = receive->next;
        struct block *block = channel_receive(&machine->channels, receive);
        if (block)
            match(machine, block, receive);
        receive = next;
    }
}

static void merge_returns(struct machine *machine, struct rank *rank)
{
    struct block *block = rank->returns;
    rank->returns = NULL;
    while (block) {
        struct block *next = block->next;
        message_home(&machine->ranks[block->message.source]->messages, block);
        block = next;
    }
}

static void round_merge(struct machine *machine)
{
    for (size_t i = 0; i < machine->words; i++) {
        for (uint64_t word = machine->running[i]; word; word &= word - 1) {
            struct rank *rank = machine->ranks[(int)i * 64 + __builtin_ctzll(word)];
            merge_returns(machine, rank);
            merge_sends(machine, rank);
            merge_receives(machine, rank);
            meetings_merge(machine, rank);
            if (rank->state == RANK_YIELDED) {
                rank->state = RANK_READY;
                rank_set_add(machine->ready, rank->id);
            }
            machine->ended += rank->state == RANK_ENDED;
        }
    }
}

/* ---- the loop ---- */

static bool rank_set_empty(const uint64_t *set, size_t words)
{
    for (size_t i = 0; i < words; i++) {
        if (set[i])
            return false;
    }
    return true;
}

/* False where it is over; the outcome is set then. */
static bool round_next(struct machine *machine)
{
    if (machine->options.stop && *machine->options.stop) {
        machine->outcome = MACHINE_STOPPED;
        return false;
    }
    if (rank_set_empty(machine->ready, machine->words) && !meetings_give_up(machine)) {
        machine->outcome = machine->ended == machine->options.ranks ? MACHINE_FINISHED : MACHINE_DEADLOCK;
        return false;
    }
    uint64_t *ready = machine->ready;
    machine->ready = machine->running;
    machine->running = ready;
    memset(machine->ready, 0, machine->words * sizeof *machine->ready);
    round_deal(machine);
    workers_run_round(machine);
    round_merge(machine);
    meetings_run(machine);
    machine->rounds++;
    return true;
}

static void on_idle(uv_idle_t *idle)
{
    struct machine *machine = idle->data;
    for (int i = 0; i < ROUNDS_PER_TURN; i++) {
        if (!round_next(machine)) {
            uv_close((uv_handle_t *)idle, NULL); /* the loop has nothing left and returns */
            return;
        }
    }
}

enum machine_outcome rounds_run(struct machine *machine)
{
    for (int i = 0; i < machine->options.ranks; i++)
        rank_set_add(machine->ready, i);
    ASSERT(uv_idle_init(&machine->loop, &machine->idle) == 0);
    machine->idle.data = machine;
    ASSERT(uv_idle_start(&machine->idle, on_idle) == 0);
    ASSERT(uv_run(&machine->loop, UV_RUN_DEFAULT) == 0);
    return machine->outcome;
}
