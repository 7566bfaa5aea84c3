/* pattern: what an algorithm does in a group of one size: who sends which parts to whom, and how each result is
 * added up. Found out by running the algorithm itself, once a member, on marks instead of numbers; so there is
 * one description of an algorithm, its file, and nothing to keep in step with it.
 *
 * A contribution (member, part) is a leaf. A mark stands for a leaf, for the sum of two marks, or for what will
 * arrive in a message; when all members have been asked, the last kind is replaced by what was sent. */
#ifndef COLLECTIVES_PATTERN_H
#define COLLECTIVES_PATTERN_H

#include "collectives/operation.h"

struct leaf { int member, part; };

/* Slot to = a + b. Operands: a slot, or -1 - i for leaf i of the result. */
struct pattern_step { int to, a, b; };

/* A distinct value: who gets it, and how it is made; no steps: it is its one leaf. The last step makes it. */
struct pattern_result {
    struct leaf *places;             /* where it belongs: member's parts */
    int places_count;
    struct leaf *leaves; int leaves_count;
    struct pattern_step *steps; int steps_count;
};

struct pattern_message { int to; struct leaf *leaves; int count; }; /* sizes of parts are their leaves' */
struct pattern_event { int message; int peer; }; /* message >= 0: sent, of mine; < 0: received, -1 - i of the peer's */
struct pattern_member {
    struct pattern_message *messages; int messages_count;
    struct pattern_event *events; int events_count; /* in the order of the program */
};

struct pattern {
    struct pattern *next;
    const struct algorithm *algorithm;
    int size, root;
    struct arena *arena;             /* holds all the rest */
    bool sound;                      /* every result is there; a sum holds every member's contribution once */
    struct pattern_member *members;  /* [size] */
    struct pattern_result *results; int results_count;
    int slots;                       /* that steps need at most */
    struct ledger *ledgers;          /* [slots + size], work space of meeting.c */
};

/* Of this algorithm in a group of the operation's size; kept in the list. */
struct pattern *pattern_of(struct pattern **list, const struct operation *like);
void patterns_free(struct pattern *list);

/* The parts that a member gets: first and count. */
void pattern_wanted(enum collective_op op, int size, int root, int member, int *ret_first, int *ret_count);

/* ---- for operation.c, in a dry run: data are marks ---- */
void recording_send(struct recording *r, int to, const void *marks, size_t count);
struct transfer *recording_expect(struct recording *r, int from);
void *recording_arrive(struct recording *r, struct transfer *transfer, size_t count);
void recording_reduce(struct recording *r, void *to, const void *from, size_t count);

#endif
