/* machine_internal: what the machine's own files share. Nobody else includes it.
 *
 *   machine.c   life of a machine, what a rank can ask
 *   rounds.c    the loop: ready set, one round, the merge
 *   workers.c   threads and their barrier
 *   channel.c   matching, by (source, destination, group, tag), first in first out
 *   message.c   payload memory
 *   transport.c what a rank calls
 *   jobs.c      meetings of ranks, computed between rounds
 *   liveness.c  the wait-for graph and its cycle
 *
 * Who may touch what. During a round a rank's coroutine, on its worker, writes its own struct rank and
 * what hangs on it: its pools, its transfers, the messages it holds, its lists of posts and returns.
 * Between rounds only the loop thread runs and may touch everything. The barrier in workers.c orders
 * the two, so nothing here needs a lock. */
#ifndef SIM_MACHINE_INTERNAL_H
#define SIM_MACHINE_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "sim/coroutine.h"
#include "sim/jobs.h"
#include "sim/machine.h"
#include "sim/trace.h"
#include "sim/transport.h"

enum { CACHE_LINE = 64 };

/* ---- messages ---- */

enum block_state { BLOCK_FREE, BLOCK_SENT, BLOCK_HELD };

/* A message with its payload right behind it. Allocated by the sender, given back by the receiver, and
 * brought home to the sender's pool in the merge: traffic in one direction doesn't grow without end. */
struct block {
    struct message message;      /* first: a message is its block */
    struct block *next;          /* in the one list it is in: free, posts, channel, returns */
    struct block *next_of_home;  /* all blocks of the home rank, for freeing */
    struct transfer *sync;       /* the sender's transfer, which a match completes; NULL for SEND_ASYNC */
    enum block_state state;
    int bucket;
    size_t accounted_bytes;
    uint64_t number;             /* of the source's messages, from 0 */
} __attribute__((aligned(CACHE_LINE)));

/* Sizes by quarters of a power of two, so at most a quarter of a block is idle. Up to 2^48 bytes. */
enum { BUCKETS = 5 + 4 * 40 };
struct message_pool {
    struct block *free[BUCKETS];
    struct block *all;
};
void message_pool_done(struct message_pool *pool);
struct block *message_new(struct message_pool *pool, size_t bytes); /* uninitialised but data, bytes, ledger */
void message_home(struct message_pool *pool, struct block *block);  /* back into its own pool */

/* ---- transfers ---- */

enum transfer_state { TRANSFER_FREE, TRANSFER_POSTED, TRANSFER_DONE };

struct transfer {
    struct rank *rank;           /* its owner */
    struct transfer *next;       /* free, posts, channel */
    struct transfer *next_of_rank;
    enum transfer_state state;   /* only the loop thread sets TRANSFER_DONE on a posted one */
    bool is_send;
    int peer;
    uint32_t tag;
    struct call call;
    struct block *block;         /* what a receive got */
    double posted_s;
    double done_s;               /* waiting for it moves the rank's clock here */
};

struct transfer_list { struct transfer *first, *last; };
struct block_list { struct block *first, *last; };
static inline void transfer_append(struct transfer_list *list, struct transfer *transfer)
{
    transfer->next = NULL;
    *(list->first ? &list->last->next : &list->first) = transfer;
    list->last = transfer;
}
static inline void block_append(struct block_list *list, struct block *block)
{
    block->next = NULL;
    *(list->first ? &list->last->next : &list->first) = block;
    list->last = block;
}

/* ---- channels ---- */

struct channel;
struct channel_table { struct channel **slots; size_t slot_count, used; struct channel *spare; };
void channel_table_init(struct channel_table *table);
void channel_table_done(struct channel_table *table);
/* Each returns the other side, taken off its queue, or queues its own side and returns NULL. */
struct transfer *channel_send(struct channel_table *table, struct block *block);
struct block *channel_receive(struct channel_table *table, struct transfer *receive);
/* Messages that wait for a receive: how many, and the first by (source, order of posting). */
int channel_unreceived(const struct channel_table *table, const struct block **ret_first);

/* ---- ranks ---- */

enum { TRACE_KEPT = 8 };
struct trace {
    struct trace_event recent[TRACE_KEPT]; /* a ring, unless everything is kept */
    struct trace_event *events;
    int capacity;
    uint64_t total;
};

struct post_list { struct post *first, *last; };

enum rank_state { RANK_READY, RANK_RUNNING, RANK_WAITING, RANK_MEETING, RANK_YIELDED, RANK_ENDED };

struct rank {
    struct machine *machine;
    int id;
    enum rank_state state;
    struct coroutine *coroutine;
    struct transfer *waiting;    /* for RANK_WAITING */
    struct post *meets;          /* for RANK_MEETING */
    double time_s, busy_s;

    struct block_list sends;           /* posted in this round */
    struct transfer_list receives;
    struct post_list posts;
    struct block *returns;             /* released in this round, of any home */
    struct message_pool messages;
    struct transfer *transfer_free, *transfer_all;
    int unwaited;
    struct transport_count sent;

    void *program;
    rank_describe *describe;
    const char *note;                  /* rank_note */
    struct arena *arenas[ARENA_SCRATCH + 1];
    struct trace trace;
} __attribute__((aligned(CACHE_LINE)));

void trace_done(struct trace *trace);

/* ---- workers ---- */

struct ready { uint64_t key; int rank; };

struct worker {
    struct machine *machine;
    uv_thread_t thread;
    bool started;
    struct ready *ready;         /* of this round, in the order in which they run */
    int ready_count;
    bool jobs;                   /* this epoch is for jobs, not for ranks */
    /* To the worker: a new epoch is a round to run. `asleep`: it needs the condition to notice. */
    _Alignas(CACHE_LINE) atomic_uint epoch;
    atomic_bool asleep;
    uv_mutex_t mutex;
    uv_cond_t condition;
} __attribute__((aligned(CACHE_LINE)));

/* Worker 0 is the loop thread. */
bool workers_start(struct machine *machine, struct error *error);
void workers_stop(struct machine *machine);
void workers_run_round(struct machine *machine); /* all workers' ready ranks, to the barrier */
void workers_run_jobs(struct machine *machine, bool shared); /* due meetings; not shared: on the loop thread */
void worker_run_ranks(struct worker *worker);    /* rounds.c: one worker's share */
void worker_run_jobs(struct worker *worker);     /* jobs.c: likewise */

/* ---- meetings ---- */

struct meeting_table {
    struct meeting **slots, *spare;
    struct meeting **due;        /* to run after this round */
    int due_count, due_capacity;
    bool shared;                 /* one slice a worker */
};
void meeting_table_init(struct meeting_table *table);
void meeting_table_done(struct meeting_table *table);
void meetings_merge(struct machine *machine, struct rank *rank); /* what the rank posted, whom it waits for */
bool meetings_run(struct machine *machine);     /* the due ones; false: there were none */
bool meetings_give_up(struct machine *machine); /* all that somebody waits for; false: there were none */

/* ---- the machine ---- */

struct machine {
    struct machine_options options;
    struct rank **ranks;
    struct stack_pool *stacks;
    rank_main *main;
    void *argument;
    bool ran;

    uv_loop_t loop;
    uv_idle_t idle;
    enum machine_outcome outcome;
    uint64_t rounds;
    int ended;
    size_t words;                /* of a set of ranks */
    uint64_t *ready, *running;   /* sets: the next round's ranks, this round's */

    struct worker *workers;
    int worker_count;
    int spins, yields;           /* how long a barrier stays awake */
    atomic_bool quit;
    atomic_bool loop_asleep;
    _Alignas(CACHE_LINE) atomic_int remaining;
    uv_mutex_t mutex;            /* for the loop thread's sleep in the barrier */
    uv_cond_t condition;

    struct channel_table channels;
    struct meeting_table meetings;
    struct arena *texts;
    struct deadlock deadlock;
};

/* rounds.c: from the first round until it ends, deadlocks or is stopped. */
enum machine_outcome rounds_run(struct machine *machine);
/* liveness.c: fills machine->deadlock from the parked ranks. */
void liveness_report(struct machine *machine);
void liveness_done(struct machine *machine);

static inline void rank_set_add(uint64_t *set, int rank) { set[rank / 64] |= UINT64_C(1) << (rank % 64); }

#endif
