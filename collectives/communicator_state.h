/* communicator_state: the body of a communicator, for the files of this floor only. */
#ifndef COLLECTIVES_COMMUNICATOR_STATE_H
#define COLLECTIVES_COMMUNICATOR_STATE_H

#include "collectives/operation.h"

struct group_entry {                  /* a group of this rank; the public part comes first */
    struct group group;
    uint64_t transfers;               /* point-to-point calls this rank has made in it */
    struct group_entry *next;         /* in the order they were made */
};

/* One message whose two sides describe different calls. */
struct difference {
    struct call mine, theirs;         /* receiver's, sender's */
    int receiver, sender;             /* ranks */
    struct where where;               /* of the receiver */
    bool point_to_point;
};
enum { DIFFERENCES_MAX = 64 };        /* kept a rank; the first ones tell */

struct transfer_kind { const char *purpose; uint64_t count; enum format format; uint64_t times; };

/* A receive between receive_start and receive_wait. */
struct pending {
    struct transfer *transfer;
    struct call call;
    int from;                         /* global rank */
    struct where where;
    const struct site *site;
    const struct armed *due;
    size_t count;
    enum format wire;
};

struct saved_result { int step; size_t bytes, capacity; void *data; struct ledger ledger; bool set; };
/* Results of a site that a `stale` deviation may ask for. */
struct saved {
    const struct site *site; enum collective_op op; int layer; char *param;
    struct saved_result latest, earlier; /* earlier: the last one of a step before latest.step */
};

struct communicator {
    struct rank *rank;
    struct mesh mesh;
    struct arena *scratch;            /* released after every call; poisoning */
    struct arena *keep;               /* as long as the communicator */
    struct group_entry *groups, **groups_end;
    const struct algorithm *chosen[OP_COUNT];
    const struct algorithm **added; int added_count, added_capacity;
    struct misuse *misuses; int misuses_count;
    struct operation *operations;     /* all there ever were at once */
    struct late *late;                /* results that a deviation holds back */
    struct operation *deferred;       /* which a deviation starts after the next one */
    struct hazard *hazards; int hazards_count;
    struct pattern *patterns;         /* what algorithms do, for meetings in which this rank is member 0 */
    struct ledger ledger;             /* scratch of one call */
    struct ledger nothing;            /* always empty */
    bool messages_only;
    bool watches;                     /* inputs of asynchronous calls, for writes while they are under way */

    struct call_record *calls; int calls_count, calls_capacity;
    struct traffic *traffic; int traffic_count, traffic_capacity;
    struct difference *differences; int differences_count;
    struct transfer_kind *kinds; int kinds_count, kinds_capacity;
    struct pending *pending; int pending_count, pending_capacity;
    struct saved *saved; int saved_count, saved_capacity;
};

/* Room for one more in a growing array. */
#define GROW(array, count, capacity) \
    ((count) < (capacity) ? (void)0 : \
     (void)((capacity) = (capacity) ? 2 * (capacity) : 8, \
            (array) = memory_realloc((array), (size_t)(capacity) * sizeof *(array))))

struct group_entry *group_make(struct arena *arena, const char *name, const int *ranks, int size, int rank);

/* A built-in algorithm, or one that was added; NULL: none. */
const struct algorithm *algorithm_known(const struct communicator *c, enum collective_op op, const char *name);

void operation_reserve(struct operation *o, int size);
void operations_free(struct operation *o);
/* Sets parts' uncounted so that the last o->uncounted elements of all are (all_reduce). */
void parts_uncounted(struct operation *o);

/* ---- meeting.c ---- */
void meeting_post(struct operation *o);

/* ---- hazards.c: buffers of asynchronous calls ---- */
enum { HAZARDS_MAX = 64 };            /* kept a rank; the first ones tell */
uint64_t hazard_checksum(struct buffer buffer);
void hazard_posted(struct operation *o);     /* a start names its buffers */
void hazard_sent(struct communicator *c, const struct comm *how, struct where where, struct buffer given, struct buffer taken);
void hazard_taken(struct operation *o);      /* o->in is about to be read: is it what was posted? */
void hazard_completed(struct operation *o, struct buffer in); /* in: the caller's */
bool buffers_overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes);

/* ---- late.c: results that come after their wait ---- */
struct late;
struct late *late_in(const struct communicator *c, const void *data, size_t bytes, const struct site **ret_site,
                     struct where *ret_where); /* what is held back of these bytes, and of which call; NULL: nothing */
void late_complete(struct communicator *c);  /* what was held back reaches its buffers */
/* Keeps what out holds now; is_torn: of its second half. */
struct late *late_before(struct buffer out, const struct site *site, struct where where, bool is_torn);
void late_hold(struct communicator *c, struct late *late); /* takes the result away, puts that back */
void late_free(struct late *late);

void call_log(struct communicator *c, const struct operation *o);
/* Index of the row for such calls, counted once more. */
int traffic_row(struct communicator *c, const struct call *call, bool count_call);
void traffic_add(struct communicator *c, int row, size_t bytes);
size_t traffic_bytes(size_t count, size_t uncounted, enum format wire);

/* Notes a difference; wanted: elements this side expected, arrived: elements of the message. */
void difference_note(struct communicator *c, const struct call *mine, const struct message *message,
                     struct where where, bool point_to_point);
bool calls_differ(const struct call *a, const struct call *b, bool point_to_point);
void message_copy(void *to, size_t bytes, size_t tail, const struct message *message);
void transfer_seen(struct communicator *c, const struct call *call);

/* ---- deviations.c ---- */
enum communication_deviation {
    DEVIATION_NONE = -1,
#define DEVIATION(id, name, needs, what) DEVIATION_##id,
#include "collectives/deviations.def"
#undef DEVIATION
    COMMUNICATION_DEVIATION_COUNT
};
enum communication_deviation deviation_kind(const struct armed *due); /* NULL: DEVIATION_NONE */
/* The deviation of the call that is being made, counted as hit where it has an effect at this side.
 * peer: the other side's global rank for send and receive, else -1. */
const struct armed *deviation_due(struct communicator *c, const struct site *site, struct where where,
                                  enum collective_op op, int peer, const struct group *g);
struct group *deviation_group(struct communicator *c, const struct armed *due, struct group *g);
enum reduce_op deviation_reduce(const struct armed *due, enum reduce_op op);
int deviation_root(const struct armed *due, int root, int size);
int deviation_peer(const struct armed *due, int peer, int me, int size);
enum format deviation_wire(const struct armed *due, enum format wire);
enum format deviation_hop(const struct armed *due, enum format wire); /* of running sums */
size_t deviation_count(const struct armed *due, size_t count, size_t uncounted);
int deviation_divisions(const struct armed *due); /* how often an average is divided */
/* What came from a member of the call, before it is used: lost on its way. */
void deviation_arrived(const struct operation *o, int source, const struct part *part);
/* What a member brings to a reduction, numbers and ledger: twice, none, divided before. */
void deviation_contribution(struct operation *o, struct part *part);
/* Rotates count values to the left by first. */
void values_rotate(struct communicator *c, void *data, size_t count, size_t first, enum format storage);
/* What the caller gets: keeps it for later steps where that is needed, then stale, scale, corrupt, permute.
 * The last `uncounted` elements keep their places and are not corrupted.
 * first_part: elements of the first part, which change places with the others; 0: they did so before. */
void deviation_result(struct communicator *c, const struct site *site, struct where where, enum collective_op op,
                      const struct armed *due, struct buffer result, size_t uncounted, size_t first_part);
/* Whether deviation_result may change or keep anything at this site. */
bool deviation_watches(const struct communicator *c, const struct site *site);
void saved_free(struct saved *saved, int count);

#endif
