/* context: attention over a sequence that is split over the ranks of a context-parallel group (cp).
 *
 * P members; member r holds the rows at its positions of every sequence (a layout, layouts.def), s_r of them, not all
 * members the same number; q [B, s_r, H, D], k, v [B, s_r, G, D], out as q, lse [B, H, s_r]. A method (methods.def) makes every
 * query meet every key that it may see, wherever the key is:
 *
 *   ring         keys and values go round, each member merges a block's result by its log-sum-exp (merges.def)
 *   all_gather   each member gathers all keys and values: one block, nothing to merge
 *   ulysses      all-to-all between sequence and heads: each member has all positions of H/P heads
 *   usp          ulysses over consecutive members within a ring over the others (Fang & Zhao 2024)
 *
 * Backward: the gradient of out comes in, the whole row's out and lse are what the blocks' gradients are made with; a key's
 * gradient ends on the member that holds the key.
 *
 * Joint rows (text beside image tokens): every member has the same J queries, keys and values at the front or the end of the
 * sequence. Their output is made on every member from all keys; their keys enter once; their gradients are parts whose sum
 * over the group is due, where the cotangent of a joint row's output is given whole to each member and counted 1/P.
 * Sinks: a logit a head without a value, which enters each row's denominator once. */
#ifndef MODEL_CONTEXT_CONTEXT_H
#define MODEL_CONTEXT_CONTEXT_H

#include "model/transformer.h"

/* ---- layouts: who holds which positions ---- */
struct context_layout {
    const char *name;
    bool by_documents;                      /* follows the documents: every sequence is split in its own way */
    /* Positions of member `me`, ascending, into ret (NULL: only counted); documents of the sequence or NULL. Returns how many. */
    int64_t (*positions)(int64_t seq, int size, int me, const int32_t *documents, int32_t *ret);
};
int context_layout_count(void);
const struct context_layout *context_layout_at(int i);
const struct context_layout *context_layout_find(const char *name);                 /* NULL: none */
/* How many positions member `me` has: it depends on the layout, and on nothing of the documents. */
int64_t context_layout_rows(const struct context_layout *layout, int64_t seq, int size, int me);

/* ---- merges: of two blocks' results into one ---- */
/* What some blocks give together: out [rows, width], lse [rows], -inf where a row saw nothing. In storage (fp32, fp64), never
 * narrower. Between begin and finish both may be in a form of the merge's own, with one number a row more. */
struct context_partial { struct tensor out, lse, extra; struct context_partial *next, *last; };
struct merging { const struct ops *ops; struct arena *scratch; bool stable /* the larger lse is taken off before exp; due: yes */; };
struct context_merge {
    const char *name;
    bool keeps_blocks;                      /* what was merged is needed until finish */
    void (*begin)(const struct merging *merging, struct context_partial *block);    /* NULL: nothing to do; memory from scratch stays until finish */
    void (*merge)(const struct merging *merging, struct context_partial *into, struct context_partial *block);
    void (*finish)(const struct merging *merging, struct context_partial *all);     /* NULL: nothing to do */
};
int context_merge_count(void);
const struct context_merge *context_merge_at(int i);
const struct context_merge *context_merge_find(const char *name);

/* ---- one attention of one member ---- */
struct context_parallel {
    struct communicator *communicator;
    struct group *group;                    /* cp, in the order of members */
    struct group *ulysses, *ring;           /* usp: the consecutive members that split heads; those at its place in each. NULL: not usp */
    const struct context_method *method; const struct context_layout *layout; const struct context_merge *merge;
    bool tree;                              /* blocks are merged two by two, not one after the other */
    bool overlap;                           /* the next block moves while this one is computed */
    bool reversed;                          /* ring backward begins with the block that came last: dK, dV make P - 1 hops, not P */
    struct context_ledgers *ledgers;        /* room for those of what moves; NULL: nothing is noted of what was consumed */
};
/* Caller owns; of one rank, for all its calls. */
struct context_ledgers *context_ledgers_new(void);
void context_ledgers_free(struct context_ledgers *ledgers);      /* accepts NULL */
struct factor_numbers;
enum joint_place { JOINT_FRONT, JOINT_REAR };

struct context_call {
    const struct context_parallel *cp;      /* group of one: no communication, the same path */
    const struct ops *ops;
    enum format activation, softmax;        /* what outputs and gradients, scores and probabilities are rounded to */
    int64_t batch, seq;                     /* seq: whole, with joint rows */
    int heads, kv_heads, head_dim;          /* that this rank has */
    bool causal; int64_t window;            /* window: |query - key| < window; 0: all */
    const int32_t *documents;               /* [batch, seq], whole; NULL: attention crosses them */
    int64_t joint; enum joint_place joint_place; /* rows of the whole sequence that every member has */
    struct site_plan *plan; struct where where; int unit;
    struct rank_record *record;             /* where what was consumed is noted; NULL: nowhere */
    struct arena *scratch;
    struct arena *kept;                     /* memory that lives until the backward, and until the rank's next communication after it */
    void *saved;                            /* what forward leaves there for backward */
    const struct factor_numbers *numbers;   /* for factors that a fault names; NULL: none */
    /* Rows in the order of the member's own positions (context_positions), joint rows among them where they stand. */
    struct tensor q, k, v, out, lse;
    struct tensor sinks;                    /* [heads]; data NULL: none */
    struct tensor d_out, dq, dk, dv, d_sinks /* += */; /* backward; k, v, d_k, d_v of own rows */
};
/* The positions of the rows of member `me` in sequence `b`, ascending; count as context_rows. */
int64_t context_rows(const struct context_call *call, int me);
void context_positions(const struct context_call *call, int me, int64_t b, int32_t *ret);

/* out and lse from q, k, v; out is rounded to `activation`. */
void context_forward(struct context_call *call);
/* dq, dk, dv from d_out and what forward left in out, lse and saved (ulysses, usp); not rounded. d_sinks: parts of a sum over the
 * group, as the joint rows' dq, dk and dv are.
 *
 * Each notes one consumption_fact where there is a record and ledgers. Due: ring: the members of whose keys some query of this
 * member's, in any sequence of the call, joint rows among them, sees one; usp: the same of its ulysses group and theirs; all_gather,
 * ulysses: every member. Each once; gradient_times the other way round. */
void context_backward(struct context_call *call);

/* ---- methods ---- */
/* What a rank's calls are, for one forward or one backward: checked by communication-count. */
struct context_shape { int64_t batch, seq, joint; int size, ulysses /* usp */, heads, kv_heads, head_dim; bool causal, reversed, overlap; };
struct context_method {
    const char *name;
    /* false and why: these sizes are refused. */
    bool (*allows)(const struct context_shape *shape, char why[320]);
    void (*forward)(struct context_call *call);
    void (*backward)(struct context_call *call);
};
int context_method_count(void);
const struct context_method *context_method_at(int i);
const struct context_method *context_method_find(const char *name);

#endif
