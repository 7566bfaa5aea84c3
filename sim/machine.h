/* machine: N virtual ranks in one process, each a coroutine on a libuv loop.
 *
 * A rank runs until it parks (transport_wait and what is built on it); it never polls. Threads work in
 * rounds: all ready ranks run to their next park, each on the worker it is pinned to (rank modulo
 * threads); then, on the loop thread, what they posted is merged in rank order, matched, and the next
 * round's ready set is made. So a run is a function of the program alone: not of the number of threads,
 * the interleaving, the load, or addresses.
 * Quiescence with parked ranks is a deadlock and is reported at once, without a clock. */
#ifndef SIM_MACHINE_H
#define SIM_MACHINE_H

#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>
#include "sim/arena.h"
#include "sim/error.h"
#include "sim/site.h"

struct machine;
struct rank;

struct machine_options {
    int ranks;
    int threads;               /* >= 1; more than ranks is cut to ranks */
    uint64_t interleave;       /* the order in which a worker runs the ready ranks of a round; 0: ascending */
    size_t stack_bytes;        /* 0: 256 KiB */
    const char *coroutine;     /* how ranks switch: a backend of coroutine.h that this build has; NULL: the default */
    bool messages_only;        /* ranks never meet (sim/jobs.h): collectives go message by message; the same bits */
    bool trace;                /* keep every event, not only the last few of a rank */
    struct site_plan *plan;    /* borrowed; may be NULL */
    /* Virtual time of one message: seconds from post to arrival. NULL: 0. */
    double (*message_cost_s)(void *context, int source, int destination, size_t bytes);
    void *cost_context;
    volatile int *stop;        /* borrowed; set to non-zero (by a signal) ends the run; may be NULL */
};

enum machine_outcome { MACHINE_FINISHED, MACHINE_DEADLOCK, MACHINE_STOPPED };

/* One rank that can't go on. Texts live as long as the machine. */
struct blocked {
    int rank;
    int peer;                  /* whom it waits for */
    bool is_send;              /* a synchronous send that nobody receives; else a receive nobody sent */
    const char *op;            /* what it takes part in: "all_gather", "send", ... (struct call) */
    const char *purpose;       /* the site's name, "pp.send_activation" */
    const char *group;         /* name of the group, "pp" */
    uint32_t tag;
    uint64_t sequence;         /* its call number in that group */
    const char *where;         /* the rank's describe callback: where it stands in its program */
};
struct deadlock {
    int blocked_count;
    struct blocked *blocked;   /* ascending by rank */
    int cycle_count;           /* 0: no cycle (a peer has ended, or never sends) */
    int *cycle;                /* ranks; each waits for the next, the last for the first */
};

typedef void rank_main(struct rank *rank, void *argument);
typedef void rank_describe(const struct rank *rank, char *text, size_t size);

struct machine *machine_new(const struct machine_options *options, struct error *error); /* caller owns */
void machine_free(struct machine *machine);                                            /* accepts NULL */
/* Runs `main` on every rank to the end, a deadlock, or a stop. Once a machine. Where a thread can't be
 * started: MACHINE_STOPPED with the error set. */
enum machine_outcome machine_run(struct machine *machine, rank_main *main, void *argument, struct error *error);
const struct deadlock *machine_deadlock(const struct machine *machine); /* NULL unless it deadlocked */
int machine_ranks(const struct machine *machine);
struct rank *machine_rank(struct machine *machine, int id);
uint64_t machine_rounds(const struct machine *machine);
/* Messages that were sent and never received, after a run: count, and the first, as text ("" if none). */
int machine_unreceived(const struct machine *machine, char *text, size_t size);

int rank_id(const struct rank *rank);
struct machine *rank_machine(const struct rank *rank);
struct site_plan *rank_plan(const struct rank *rank);
enum rank_arena { ARENA_RUN, ARENA_STEP, ARENA_SCRATCH };
struct arena *rank_arena(struct rank *rank, enum rank_arena which); /* poisoning; reset by the program that uses them */
void rank_set_program(struct rank *rank, void *program, rank_describe *describe);
void *rank_program(const struct rank *rank);
/* What a report of a deadlock says beside describe, while it stands: borrowed; NULL: nothing. Returns what stood there. */
const char *rank_note(struct rank *rank, const char *note);
/* Virtual clock: (time, sequence). Waiting for a message moves a rank to its arrival if that is later. */
double rank_time_s(const struct rank *rank);
double rank_busy_s(const struct rank *rank);
void rank_advance(struct rank *rank, double seconds); /* computing */
/* Lets every other ready rank run first: parks until the next round. */
void rank_yield(struct rank *rank);

#endif
