/* operation: one collective call in flight, as an algorithm sees it. Internal to this floor.
 *
 * An algorithm is a function of an operation. It finds the call's data cut into parts, one a member (one
 * in all for a broadcast), with the rank's contribution in them, already rounded to the wire's format,
 * and moves them with the functions below and no others:
 *   reduce_scatter_*  in: my contribution to every part; out: parts[me] = reduced over members
 *   all_gather_*      in: parts[me];                     out: all parts
 *   all_reduce_*      in: my contribution to every part; out: all parts, reduced
 *   broadcast_*       in: parts[0] on the root;          out: parts[0]
 *   gather_*          in: parts[me];                     out: all parts on the root
 * Numbers and ledger of a part move in one call. REDUCE_AVG adds here; collectives.c divides afterwards.
 * A part of no elements is still a message, so that the number of messages depends on the size alone. */
#ifndef COLLECTIVES_OPERATION_H
#define COLLECTIVES_OPERATION_H

#include "collectives/collectives.h"

enum collective_op {
    OP_ALL_REDUCE, OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_BROADCAST, OP_GATHER, OP_BARRIER,
    OP_RING_SHIFT, OP_SEND, OP_RECEIVE, OP_COUNT
};
extern const char *const collective_op_names[OP_COUNT];

struct part {
    void *data;
    size_t count, uncounted;       /* elements; how many of them traffic leaves out */
    const struct ledger *ledger;   /* what went into data; NULL: nothing yet, or no ledgers */
    struct ledger *own;            /* where a change of ledger is written; NULL: no ledgers */
};

struct operation {
    struct communicator *c;
    struct rank *rank;
    struct group *group;
    struct call call;              /* how this rank describes it to others */
    struct where where;
    const struct site *site;
    const struct armed *due;       /* the deviation of this call; NULL in a healthy run */
    enum collective_op op;
    enum format storage, wire;
    enum reduce_op reduce;
    int size, me, root;
    int shift;                     /* ring_shift */
    uint32_t tag;
    bool ledgers;                  /* data carries ledgers */
    bool busy, differs;            /* a call is under way; a difference to a peer's was noted */
    size_t uncounted;
    const struct algorithm *algorithm;
    int traffic;                   /* index of its row */
    struct part *parts;            /* [size] */
    size_t *counts;                /* [size] */
    struct transfer **transfers;   /* [size], for algorithms that post several receives */
    struct ledger *ledgers_own;    /* [capacity], one a part */
    int capacity;
    struct arena_mark mark;        /* of the communicator's scratch */
};

typedef void algorithm_run(struct operation *o);
struct algorithm { enum collective_op op; struct collective_algorithm info; algorithm_run *run; };
/* NULL: unknown. name NULL: the first of the op. */
const struct algorithm *algorithm_find(enum collective_op op, const char *name);

#define ALGORITHM(op, name) void op##_##name(struct operation *o);
#include "collectives/collectives.def"
#undef ALGORITHM

/* ---- for algorithms ---- */
static inline int operation_member(const struct operation *o, int offset) /* me + offset, offset > -2 size */
{
    return (o->me + offset + 2 * o->size) % o->size;
}
void operation_send(struct operation *o, int to, const struct part *part);
struct transfer *operation_expect(struct operation *o, int from);
/* Waits. *ret_part is what arrived, in the message's own memory, cut or filled with NaN to like->count. */
struct message *operation_arrive(struct operation *o, struct transfer *transfer, const struct part *like,
                                 struct part *ret_part);
struct message *operation_receive(struct operation *o, int from, const struct part *like, struct part *ret_part);
void operation_release(struct operation *o, struct message *message);
void part_take(struct operation *o, struct part *to, const struct part *from);    /* to = from */
void part_reduce(struct operation *o, struct part *to, const struct part *from);  /* to = round(to op from) */

/* ---- for collectives.c: the frame around an algorithm ---- */
struct operation *operation_begin(struct communicator *c, struct group *g, const struct comm *how,
                                  enum collective_op op, struct buffer shape, enum reduce_op reduce, int root);
/* Fills o->counts: `own` for this member, else counts[i] (NULL: own); returns the sum. */
size_t operation_counts(struct operation *o, size_t own, const size_t *counts, int counts_size);
/* Lays parts of o->counts one after the other from base on; their ledger is `ledger`. */
void operation_layout(struct operation *o, void *base, const struct ledger *ledger);
void *operation_scratch(struct operation *o, size_t elements);
/* Logs and counts the call and takes its number; false where it is not made (skip, drop). */
bool operation_enter(struct operation *o, size_t count);
void operation_run(struct operation *o); /* rounds the contribution to the wire's format, runs the algorithm */
void operation_end(struct operation *o);

/* Rounds values stored as `storage` to `wire`, in place. */
void values_round(void *data, size_t count, enum format storage, enum format wire);
static inline bool wire_narrows(enum format storage, enum format wire)
{
    return format_traits[wire].significand_bits < format_traits[storage].significand_bits;
}
static inline void *values_at(const void *data, size_t i, enum format storage)
{
    return (char *)data + i * format_storage_bytes(storage);
}

#endif
