/* ranks: runs one function on every rank of a small machine, each with a communicator. For tests. */
#ifndef TESTS_SUPPORT_RANKS_H
#define TESTS_SUPPORT_RANKS_H

#include <check.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "collectives/collectives.h"
#include "collectives/match.h"

enum { RANKS_MAX = 16 };

/* For rank bodies: they run on coroutines and worker threads, where check's assertions (which write to a
 * file each and jump back to the test) don't belong. Ends the program. */
#define REQUIRE(condition) ((condition) ? (void)0 : require_failed(__FILE__, __LINE__, #condition))
static inline void require_failed(const char *file, int line, const char *condition)
{
    fprintf(stderr, "%s:%d: not so: %s\n", file, line, condition);
    abort();
}

struct ranks {
    struct mesh mesh;
    int threads;
    uint64_t interleave;
    struct site_plan *plan;
    bool messages_only, trace;
    double (*message_cost_s)(void *context, int source, int destination, size_t bytes);
    void (*body)(struct communicator *c, int rank, void *context);
    void *context;
    /* After ranks_run: */
    struct machine *machine;
    struct communicator *communicators[RANKS_MAX];
    enum machine_outcome outcome;
};

static inline struct mesh mesh_line(int ranks)
{
    return (struct mesh){.axes = 1, .name = {"dp"}, .size = {ranks}};
}

static void ranks_main(struct rank *rank, void *argument)
{
    struct ranks *ranks = argument;
    int id = rank_id(rank);
    ranks->communicators[id] = communicator_new(rank, &ranks->mesh);
    communicator_watch(ranks->communicators[id]);
    ranks->body(ranks->communicators[id], id, ranks->context);
}

static inline void ranks_run(struct ranks *ranks)
{
    struct error error = {0};
    struct machine_options options = {
        .ranks = mesh_ranks(&ranks->mesh), .threads = ranks->threads ? ranks->threads : 1,
        .interleave = ranks->interleave, .plan = ranks->plan,
        .messages_only = ranks->messages_only, .trace = ranks->trace, .message_cost_s = ranks->message_cost_s,
    };
    ck_assert_int_le(options.ranks, RANKS_MAX);
    memset(ranks->communicators, 0, sizeof ranks->communicators);
    ranks->machine = machine_new(&options, &error);
    ck_assert_ptr_nonnull(ranks->machine);
    ranks->outcome = machine_run(ranks->machine, ranks_main, ranks, &error);
    ck_assert_msg(!error_is_set(&error), "%s", error.message);
}

/* Buffers of rank bodies. A deadlock leaves bodies parked for good; ranks_done frees what they held. */
struct kept { struct ledger ledger; void *data; struct kept *previous, *next; };
static struct kept kept = {.previous = &kept, .next = &kept};
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

/* A buffer of its own, filled with NaN, with an empty ledger. */
static inline struct buffer buffer_new(size_t count, enum format storage, enum format wire)
{
    struct kept *keep = memory_alloc(sizeof *keep);
    ledger_init(&keep->ledger);
    keep->data = memory_alloc(count * format_storage_bytes(storage));
    memory_poison(keep->data, count * format_storage_bytes(storage));
    pthread_mutex_lock(&kept_lock);
    keep->next = &kept;
    keep->previous = kept.previous;
    kept.previous = kept.previous->next = keep;
    pthread_mutex_unlock(&kept_lock);
    return (struct buffer){keep->data, count, storage, wire, &keep->ledger};
}

static inline void buffer_free(struct buffer buffer)
{
    struct kept *keep = (struct kept *)buffer.ledger; /* its first member */
    pthread_mutex_lock(&kept_lock);
    keep->previous->next = keep->next;
    keep->next->previous = keep->previous;
    pthread_mutex_unlock(&kept_lock);
    ledger_done(&keep->ledger);
    free(keep->data);
    free(keep);
}

static inline void ranks_done(struct ranks *ranks)
{
    for (int i = 0; i < RANKS_MAX; i++)
        communicator_free(ranks->communicators[i]);
    machine_free(ranks->machine);
    while (kept.next != &kept)
        buffer_free((struct buffer){.ledger = &kept.next->ledger});
}

static const struct site site_reduce = {"test.reduce", SITE_COMMUNICATION, "test", FACET_REDUCES, ""};
static const struct site site_move = {"test.move", SITE_COMMUNICATION, "test", FACET_ROOTED | FACET_POINT_TO_POINT, ""};

static inline struct comm at_step(const struct site *site, int step)
{
    struct comm how = {.site = site, .where = WHERE_NONE};
    how.where.step = step;
    return how;
}

static inline double at(struct buffer buffer, size_t i)
{
    return format_get(buffer.data, i, buffer.storage);
}

static inline void put(struct buffer buffer, size_t i, double value)
{
    format_set(buffer.data, i, buffer.storage, value);
}

/* The contribution of `rank` at `step` goes into the ledger. */
static inline void came_from(struct buffer buffer, int step, int rank)
{
    ledger_clear(buffer.ledger);
    ledger_add_term(buffer.ledger, (struct origin){.step = step, .rank = rank}, 1, 1.0);
}

/* How often it is in there. */
static inline int times_of(struct buffer buffer, int step, int rank)
{
    const struct ledger_term *term = ledger_find(buffer.ledger, (struct origin){.step = step, .rank = rank});
    return term ? term->times : 0;
}

#endif
