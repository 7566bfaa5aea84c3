/* operation: one collective call in flight, as an algorithm sees it. For this floor, and for algorithms that come from
 * elsewhere (model/plugin/algorithm.c).
 *
 * An algorithm is a function of an operation. It finds the call's data cut into parts, one a member (one
 * in all for a broadcast and a reduce), with the rank's contribution in them, already rounded to the wire's
 * format, and moves them with the functions below and no others:
 *   reduce_scatter_*  in: my contribution to every part; out: parts[me] = reduced over members
 *   all_gather_*      in: parts[me];                     out: all parts
 *   all_reduce_*      in: my contribution to every part; out: all parts, reduced
 *   reduce_*          in: parts[0], my contribution;     out: parts[0] on the root, reduced
 *   broadcast_*       in: parts[0] on the root;          out: parts[0]
 *   gather_*          in: parts[me];                     out: all parts on the root
 *   scatter_*         in: all parts on the root;         out: parts[me]
 *   all_to_all_*      in: sources[i], for member i, and parts[me]; out: all parts, part i from member i
 * Numbers and ledger of a part move in one call. REDUCE_AVG adds here; frames.c divides afterwards.
 * What an algorithm does may depend on size, me, root and nothing else: a part of no elements is still a
 * message. So the number of messages depends on the size alone, and pattern.c can ask an algorithm, with marks
 * instead of numbers, what it will do. */
#ifndef COLLECTIVES_OPERATION_H
#define COLLECTIVES_OPERATION_H

#include "collectives/collectives.h"
#include "sim/jobs.h"

enum collective_op {
    OP_ALL_REDUCE, OP_ALL_GATHER, OP_REDUCE_SCATTER, OP_BROADCAST, OP_GATHER, OP_SCATTER, OP_REDUCE, OP_ALL_TO_ALL,
    OP_BARRIER, OP_RING_SHIFT, OP_SEND, OP_RECEIVE, OP_COUNT
};
extern const char *const collective_op_names[OP_COUNT];

struct part {
    void *data;
    size_t count, uncounted;       /* elements; how many of them, at the end, traffic leaves out */
    const struct ledger *ledger;   /* what went into data; NULL: nothing yet, or no ledgers */
    struct ledger *own;            /* where a change of ledger is written; NULL: no ledgers */
};

struct recording;                  /* pattern.c */

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
    enum format hop;               /* what running sums are rounded to: the wire's, but for a deviation */
    enum reduce_op reduce;
    int size, me, root;
    uint32_t tag;
    bool ledgers;                  /* data carries ledgers */
    bool entered;                  /* logged and numbered; not so where a deviation leaves the call out */
    bool meets;                    /* posted to a meeting */
    bool differs;                  /* a difference to a peer's was noted */
    bool own_counts;               /* members' counts differ by right (all_to_all): call.count says nothing */
    bool busy;                     /* between start and the end of the wait */
    bool asynchronous, hazardous;  /* started and waited for apart; something was noted of its buffers */
    uint64_t posted;               /* hazard_checksum of the input at the start, where asynchronous */
    size_t described;              /* the count of its description */
    size_t uncounted, total;       /* total: elements of all parts */
    const struct algorithm *algorithm;
    int traffic;                   /* index of its row */
    struct buffer in, out;         /* the caller's; one and the same where in place */
    double started_s;
    struct post post;
    struct part *parts, *sources;  /* [size]; where results go, where contributions come from */
    size_t *counts;                /* [size] of parts; of sources: source_counts */
    size_t *source_counts;
    struct transfer **transfers;   /* [size], for algorithms that post several receives */
    struct ledger *ledgers_own;    /* [capacity], one a part */
    int capacity;
    struct arena_mark mark;        /* of the communicator's scratch, while it runs */
    struct recording *recording;   /* NULL but in a dry run */
    struct operation *next;        /* of its communicator: all; free ones have !busy */
};

typedef void algorithm_run(struct operation *o);
struct algorithm { enum collective_op op; struct collective_algorithm info; algorithm_run *run; const void *context /* of one that is no file here; else NULL */; };
/* NULL: unknown. name NULL: the first of the op. Built-in ones. */
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
/* Parts first ... first + count - 1 (count >= 1) as one, with the ledger that they have in common. To be used,
 * and put back, before the next range is made. */
struct part operation_range(struct operation *o, int first, int count);
void operation_range_done(struct operation *o, int first, int count, const struct part *range);

/* ---- for collectives.c and frames.c: around an algorithm ---- */
struct operation *operation_begin(struct communicator *c, struct group *g, const struct comm *how,
                                  enum collective_op op, struct buffer shape, enum reduce_op reduce, int root);
/* Fills counts: `own` for this member, else given[i] (NULL: own); returns the sum. */
size_t operation_counts(const struct operation *o, size_t *counts, size_t own, const size_t *given, int given_size);
/* Lays parts of these counts one after the other from base on; their ledger is `ledger`. */
void operation_layout(struct operation *o, struct part *parts, const size_t *counts, void *base,
                      const struct ledger *ledger);
void *operation_scratch(struct operation *o, size_t elements); /* between open and close */
/* Logs and counts the call and takes its number; false where it is not made (skip, drop). */
bool operation_enter(struct operation *o, size_t count);
/* Work by messages on this rank happens between these: scratch, and a clock that starts where the call did. */
double operation_open(struct operation *o);
void operation_close(struct operation *o, double clock_s);
void operation_run(struct operation *o); /* rounds the contribution to the wire's format, runs the algorithm */
void operation_end(struct operation *o);

/* ---- frames.c: an operation by messages ---- */
void frame_places(struct operation *o, const size_t *source_counts, const size_t *counts, int counts_size);
void frame_run(struct operation *o);

/* ---- values.c ---- */
/* Rounds values stored as `storage` to `wire`, in place. */
/* Of a part: all but its last uncounted elements, which are no real system's and are never rounded. */
void part_round(const struct operation *o, const struct part *part, enum format wire);
void values_round(void *data, size_t count, enum format storage, enum format wire);
/* to = a op b; to may be a or b. */
void values_reduce(void *to, const void *a, const void *b, size_t count, enum format storage, enum reduce_op reduce);
void values_divide(void *data, size_t count, enum format storage, int divisor);
void values_copy(void *to, const void *from, size_t count, enum format storage); /* may overlap */
static inline bool wire_narrows(enum format storage, enum format wire)
{
    return format_traits[wire].significand_bits < format_traits[storage].significand_bits;
}
static inline void *values_at(const void *data, size_t i, enum format storage)
{
    return (char *)data + i * format_storage_bytes(storage);
}
/* to = the terms that both have, each as often as where it is rarer. */
void ledger_common(struct ledger *to, const struct ledger *from);

#endif
