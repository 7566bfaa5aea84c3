/* liveness: why a machine can't go on.
 *
 * At quiescence every rank has ended or is parked on exactly one transfer, so the wait-for graph has at
 * most one edge a rank (none where the peer has ended): a chain either runs into a cycle or stops at an
 * ended rank. Following the chain from every rank, in ascending order, meets every cycle once; the one
 * with the smallest rank is reported, from that rank on. */
#include <stdlib.h>

#include "sim/assertion.h"
#include "sim/machine_internal.h"

enum { DESCRIBE_BYTES = 1024 };

static const char *text_or_empty(const char *text)
{
    return text ? text : "";
}

static const char *rank_where(struct machine *machine, const struct rank *rank)
{
    char text[DESCRIBE_BYTES] = "";
    if (rank->describe)
        rank->describe(rank, text, sizeof text);
    text[sizeof text - 1] = '\0';
    if (rank->note)
        return arena_printf(machine->texts, "%s%s%s", rank->note, text[0] ? "; " : "", text);
    return text[0] ? arena_strdup(machine->texts, text) : "";
}

static struct blocked blocked_rank(struct machine *machine, const struct rank *rank)
{
    const struct transfer *transfer = rank->waiting;
    ASSERT(rank->state == RANK_WAITING && transfer);
    return (struct blocked){
        .rank = rank->id,
        .peer = transfer->peer,
        .is_send = transfer->is_send,
        .op = text_or_empty(transfer->call.op),
        .purpose = text_or_empty(transfer->call.purpose),
        .group = text_or_empty(transfer->call.group),
        .tag = transfer->tag,
        .sequence = transfer->call.sequence,
        .where = rank_where(machine, rank),
    };
}

/* The rank that this one waits for, or -1: it runs no more. */
static int next_of(const struct machine *machine, int rank)
{
    const struct transfer *transfer = machine->ranks[rank]->waiting;
    return transfer ? transfer->peer : -1;
}

/* The smallest rank that is part of a cycle, or -1. visit[r]: the start of the walk that came by r, + 1. */
static int cycle_smallest(const struct machine *machine, int *visit)
{
    int smallest = -1;
    for (int start = 0; start < machine->options.ranks; start++) {
        int rank = start;
        for (; rank >= 0 && visit[rank] == 0; rank = next_of(machine, rank))
            visit[rank] = start + 1;
        if (rank < 0 || visit[rank] != start + 1)
            continue; /* ended, or a chain that is known */
        int first = rank;
        do {
            if (smallest < 0 || rank < smallest)
                smallest = rank;
            rank = next_of(machine, rank);
        } while (rank != first);
    }
    return smallest;
}

void liveness_report(struct machine *machine)
{
    struct deadlock *deadlock = &machine->deadlock;
    size_t ranks = (size_t)machine->options.ranks;
    deadlock->blocked = memory_alloc(ranks * sizeof *deadlock->blocked);
    deadlock->cycle = memory_zalloc(ranks * sizeof *deadlock->cycle);
    for (int r = 0; r < machine->options.ranks; r++) {
        if (machine->ranks[r]->state != RANK_ENDED)
            deadlock->blocked[deadlock->blocked_count++] = blocked_rank(machine, machine->ranks[r]);
    }
    int first = cycle_smallest(machine, deadlock->cycle);
    for (int rank = first; rank >= 0;) {
        deadlock->cycle[deadlock->cycle_count++] = rank;
        rank = next_of(machine, rank);
        if (rank == first)
            break;
    }
}

void liveness_done(struct machine *machine)
{
    free(machine->deadlock.blocked);
    free(machine->deadlock.cycle);
}
