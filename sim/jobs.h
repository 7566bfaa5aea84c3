/* jobs: what several ranks have done for them together, between rounds, at memory speed.
 *
 * Ranks meet: each posts its part of a meeting (group, call number) and goes on; it parks where it waits. A
 * meeting that all its members have posted to, and that at least one of them waits for, is prepared on the loop
 * thread after the round, run on all workers while every rank is parked, and finished on the loop thread; then
 * the waiting ranks are ready. So what a meeting reads and writes is what its members' memory holds at the end of
 * that round, and which round that is follows from the programs alone.
 *
 * A meeting may also be given up: prepare says that it can't be done (the members don't agree), or nothing else
 * is left to run and a member is missing. Its members are told MEETING_APART, then or when they come to wait,
 * and do it themselves with messages. Nothing has happened before, so it is as if they never had met: also a
 * deadlock is always one of messages. */
#ifndef SIM_JOBS_H
#define SIM_JOBS_H

#include "sim/machine.h"

struct meeting;

/* All members of a meeting name the same kind. */
struct meeting_kind {
    /* Loop thread. False: apart. *ret_work: a measure of the work, about one a number that is written. */
    bool (*prepare)(struct meeting *meeting, size_t *ret_work);
    /* Any worker: the share slice of slices; writes what no other slice reads or writes. */
    void (*run)(struct meeting *meeting, int slice, int slices);
    /* Loop thread, after all slices. Sets done_s of the posts. */
    void (*finish)(struct meeting *meeting);
};

enum meeting_outcome { MEETING_OPEN, MEETING_DONE, MEETING_APART };

/* A member's part: its memory is the member's, and stays until it has waited. */
struct post {
    const struct meeting_kind *kind;
    void *context;               /* the member's own description */
    uint32_t group_id;
    uint64_t sequence;
    int size, member;            /* of the group; this member's index */
    double done_s;               /* waiting moves the rank's clock here if that is later */
    /* The machine's: */
    struct rank *rank;
    struct post *next;
    enum meeting_outcome outcome;
    bool waited;
};

struct meeting {
    struct post **posts;         /* [size], by member */
    int size;
    void *context;               /* prepare's, for run and finish */
    /* The machine's: */
    uint32_t group_id;
    uint64_t sequence;
    int present, capacity;
    bool apart, due;
    struct meeting *next;
};

/* For ranks. Each post is waited for once. */
void meeting_join(struct rank *rank, struct post *post);
enum meeting_outcome meeting_wait(struct rank *rank, struct post *post); /* parks; never MEETING_OPEN */

/* What was started and is not yet waited for, beside transfers (transport_unwaited counts both): +1, -1. */
void rank_unwaited(struct rank *rank, int change);
/* Messages that were not sent but stand for some that would have been; counted as sent. */
void transport_count_add(struct rank *rank, uint64_t messages, uint64_t bytes);
/* Sets the virtual clock, for work that began earlier beside the rank's own. Returns what it was. */
double rank_clock_set(struct rank *rank, double time_s);
/* Seconds that one message takes (machine_options.message_cost_s). */
double machine_message_cost_s(const struct machine *machine, int source, int destination, size_t bytes);
bool machine_messages_only(const struct machine *machine);

#endif
