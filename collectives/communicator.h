/* communicator: one rank's end of all communication: its groups, its log of calls, its traffic.
 *
 * Every collective takes a communicator, a group and a `struct comm` that says at which site it
 * happens; the deviations of communication sites live here (collectives/deviations.c). */
#ifndef COLLECTIVES_COMMUNICATOR_H
#define COLLECTIVES_COMMUNICATOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "collectives/group.h"
#include "sim/transport.h"

enum reduce_op { REDUCE_SUM, REDUCE_AVG, REDUCE_MAX, REDUCE_COUNT };
extern const char *const reduce_op_names[REDUCE_COUNT];

/* Where and how one call is made. */
struct comm {
    const struct site *site;      /* required: its name is the purpose in every report */
    struct where where;
    const char *algorithm;        /* NULL: the op's default (communicator_set_algorithm, else its first line) */
    size_t uncounted;             /* elements passed beside a real system's payload (probes): left out of traffic, never rounded */
};

/* Numbers that move, with what went into them. */
struct buffer {
    void *data;                   /* stored fp32 or fp64 */
    size_t count;                 /* elements */
    enum format storage;
    enum format wire;             /* rounded to this when sent and after each addition; usually = storage */
    struct ledger *ledger;        /* NULL: none */
};

struct communicator;

/* Caller owns. The communicator makes the "world" group and one group an axis of the mesh. */
struct communicator *communicator_new(struct rank *rank, const struct mesh *mesh);
void communicator_free(struct communicator *c);                                     /* accepts NULL */
struct rank *communicator_rank(const struct communicator *c);
/* A group by name: an axis of the mesh, "world", or one made below. NULL if there is none. */
struct group *communicator_group(struct communicator *c, const char *name);
/* The group that varies along several axes (row-major, outermost first): "dp" = {dp_replicate, dp_shard}. */
struct group *communicator_group_over(struct communicator *c, const char *name, const char *const *axes,
                                      int axes_count);
/* Any list of ranks that contains this one. */
struct group *communicator_group_of(struct communicator *c, const char *name, const int *ranks, int size);
bool communicator_set_algorithm(struct communicator *c, const char *op, const char *algorithm); /* false: unknown */
/* One that this communicator knows beside the built-in ones; it must outlive the communicator. */
struct algorithm;
void communicator_add_algorithm(struct communicator *c, const struct algorithm *algorithm);

/* Collectives go message by message from now on, as they do where the plan arms any communication site. */
void communicator_force_messages(struct communicator *c);
/* From now on inputs of asynchronous calls are compared at their start, when they are taken and at the end of the wait
 * (two passes over each); without it only reads that come too early are noted. */
void communicator_watch(struct communicator *c);

/* ---- what was done: read after the run. Group names live as long as the machine, the rest as c ---- */

struct call_record {              /* one collective call of this rank, in order */
    const char *op, *algorithm, *purpose, *group;
    uint32_t group_id; uint64_t sequence, count, uncounted; enum format format; int reduce, root; /* uncounted: as struct comm has it */
    int step, layer, microbatch;
};
int communicator_calls(const struct communicator *c);
const struct call_record *communicator_call(const struct communicator *c, int i);

/* A buffer of an asynchronous call, used between its start and the end of its wait. */
enum hazard_kind {
    HAZARD_READ,        /* the output was read although the call was not waited for */
    HAZARD_OVERWRITTEN, /* the input was not what it was at the start when it was read, or at the end */
    HAZARD_ALIASED,     /* the input holds the beginning of the output: both are one memory, and nobody said so */
};
struct hazard {
    enum hazard_kind kind;
    const struct site *site; struct where where;  /* of the call */
    const struct site *by; struct where by_where; /* who read; NULL: the input's owner */
};
int communicator_hazards(const struct communicator *c);
const struct hazard *communicator_hazard(const struct communicator *c, int i);
/* Said by who uses the output of an asynchronous call, before he does. */
void communicator_reads(struct communicator *c, const void *data, size_t bytes, const struct site *by, struct where where);

/* What foreign code (a plug-in) did against the rules of what it was given, noted by who gave it. */
enum { MISUSE_TEXT = 256 };
struct misuse {
    const struct site *site; struct where where;
    char operation[64], call[96], what[MISUSE_TEXT]; /* "attention forward"; "send to member 7"; what was wrong */
};
void communicator_misused(struct communicator *c, const struct site *site, struct where where, const char *operation, const char *call, const char *what);
int communicator_misuses(const struct communicator *c);       /* the first ones tell: at most 64 are kept */
const struct misuse *communicator_misuse(const struct communicator *c, int i);

struct traffic {                  /* this rank's share, summed over calls alike */
    const char *purpose, *op, *group, *algorithm; enum format format;
    uint64_t count;               /* calls */
    uint64_t messages, bytes;     /* sent by this rank */
};
int communicator_traffic_count(const struct communicator *c);
const struct traffic *communicator_traffic(const struct communicator *c, int i); /* order of first use */

#endif
