/* job: one member's attention inside its method: queries that stay here, blocks of keys that come. Internal to this folder.
 *
 * A call has the member's slice of the sequence and all heads. The job is what is left once the method has arranged who attends
 * where: for ring and all_gather the call itself; for ulysses and usp all positions of the ulysses group, of some of the heads.
 * Rows of a job are J joint rows and n own ones, in the order of positions, so that the joint ones are the first or the last. */
#ifndef MODEL_CONTEXT_JOB_H
#define MODEL_CONTEXT_JOB_H

#include "model/context/context.h"
#include "model/deviations.h"
#include "model/record.h"
#include "model/vectors.h"

/* Some rows of each sequence: where they stand. */
struct context_rows { int64_t count; int32_t *positions, *documents; /* [batch, count]; documents NULL: not masked */ };

enum context_ledger { LEDGER_Q, LEDGER_K, LEDGER_V, LEDGER_OWN_K, LEDGER_OWN_V, LEDGER_K_0, LEDGER_V_0, LEDGER_K_1, LEDGER_V_1,
                      LEDGER_DK, LEDGER_DV, LEDGER_DK_0, LEDGER_DV_0, LEDGER_DK_1, LEDGER_DV_1, LEDGER_ROOM, LEDGER_COUNT };
struct context_ledgers { struct ledger at[LEDGER_COUNT]; };

struct context_job {
    struct context_call *call;
    struct group *group;                   /* round which blocks go, or NULL: there is one block */
    int size, me;                          /* of it; 1, 0 */
    bool ring;                             /* blocks come one after the other (sites of rings are passed) */
    struct context_rows queries, *blocks, joint; /* all rows here; own rows of member c [size]; the joint ones */
    int heads, kv_heads;
    struct tensor q, k, v, out, lse, d_out, dq, dk, dv; /* [batch, queries.count, heads, D]; lse [batch, heads, queries.count] */
    struct tensor sinks, d_sinks;          /* [heads] */
    int lone;                              /* how many members have the same joint queries and heads: their cotangent's share is 1 / lone */
    /* How often each member is in: the output (by keys and by values), or backward in dq. */
    int32_t *times_k, *times_v, others;    /* [size of the whole group] */
};

/* A block of keys. */
struct context_block {
    struct context_rows rows;
    struct tensor k, v;                    /* [batch, rows.count, kv_heads, D] */
    const struct ledger *k_ledger, *v_ledger;
    int hop;                               /* ranks it came over; 0: own */
};

/* ---- job.c ---- */
static inline int64_t job_own_first(const struct context_job *job) /* where own rows begin among queries; joint: job_joint_first */
{
    return job->call->joint_place == JOINT_FRONT ? job->joint.count : 0;
}
static inline int64_t job_joint_first(const struct context_job *job)
{
    return job->call->joint_place == JOINT_FRONT ? 0 : job->queries.count - job->joint.count;
}
struct where context_where(const struct context_call *call, int hop);
/* due in; what the site lets through out. Where it is anything else it is noted (choices.h). */
bool context_decides(const struct context_call *call, const struct site *site, int hop, bool due);
/* A factor alike; noted where it is anything else. */
double context_factor(const struct context_call *call, const struct site *site, int hop, double due);
/* The same of a condition that asks for a mode first; always: without asking. */
bool context_skips(const struct context_call *call, const struct site *site, int hop, bool due, bool always);
/* Rows of each member of the whole group, without joint ones; as the layout has them. */
struct context_rows *context_blocks(const struct context_call *call);
struct context_rows context_joint_rows(const struct context_call *call);
struct context_rows context_all_rows(const struct context_call *call);             /* every position of the sequence */
/* Both in the order of positions; joint ones first or last. */
struct context_rows context_with_joint(const struct context_call *call, const struct context_rows *own, const struct context_rows *joint);
/* The first `count`; where there are fewer the last again. */
struct context_rows context_rows_as(const struct context_call *call, const struct context_rows *rows, int64_t count);
/* The call itself as a job of one block, without a group; own: the member's rows. */
struct context_job context_job_of(struct context_call *call, struct context_rows *blocks, struct context_rows own);

struct tensor context_rows_alloc(const struct context_call *call, int64_t rows, int heads, struct arena *arena);
/* Rows first .. first + count - 1 of each sequence of t, as a tensor of their own; or put into or added to them. */
struct tensor context_rows_take(const struct context_call *call, struct tensor t, int64_t first, int64_t count);
void context_rows_put(struct tensor t, int64_t first, struct tensor from);
void context_rows_add(const struct ops *ops, struct tensor t, int64_t first, struct tensor from);
struct ledger *context_ledger(const struct context_call *call, enum context_ledger which); /* NULL: none */
/* The ledger becomes one term: member `member` of the whole group. */
void context_ledger_of(const struct context_call *call, struct ledger *ledger, int member);
/* Its terms by member, each `parts` times too often; returns what is of another step, micro-batch, unit or more often than that explains. */
int32_t context_ledger_times(const struct context_call *call, const struct ledger *ledger, int parts, int32_t *ret_times);
/* By keys and by values; backward: in dq, and in the own dk, dv. What differs between the two counts as others. */
void context_note_consumption(const struct context_call *call, bool backward, const int32_t *k, const int32_t *v, const int32_t *dk,
                              const int32_t *dv, int32_t others);
struct buffer context_buffer(struct tensor t, enum format wire, struct ledger *ledger);

/* ---- block.c: one block by the kernel ---- */
/* Does any query see any of these keys? */
bool context_sees(const struct context_job *job, const struct context_rows *keys, bool causal);
/* Is it computed, by the mask and by the sites? *ret_bare: a block that the mask hides, which a mistaken order computes without it. */
bool context_computes(const struct context_job *job, const struct context_block *block, bool *ret_bare);
/* out [batch, queries, heads, D], lse [batch, queries, heads] (that order) of this block alone. */
void context_block_forward(const struct context_job *job, const struct context_block *block, bool bare, struct tensor out, struct tensor lse);
/* to [batch, b, a] from [batch, a, b] */
void context_swap_axes(struct tensor to, struct tensor from);
/* This block's parts: dq [like q], dk, dv [like the block's k]. */
void context_block_backward(const struct context_job *job, const struct context_block *block, bool bare, struct tensor dq, struct tensor dk, struct tensor dv);

/* ---- attend.c: blocks into an output, an output's gradient into gradients ---- */
struct attending;
struct attending *context_attend_begin(struct context_job *job);
void context_attend(struct attending *a, const struct context_block *block);
void context_attend_end(struct attending *a);   /* job->out, job->lse, times */

/* Empties dq, dk, dv; adds the sinks' gradient. */
void context_gradient_begin(struct context_job *job);
/* The block's part of dq and of the joint rows' dk, dv is added; that of its own rows, [batch, block's rows without joint ones], comes
 * out in dk, dv. Returns whether there is any; with_joint: the block has the joint rows too. */
bool context_gradient(struct context_job *job, const struct context_block *block, bool with_joint, struct tensor dk, struct tensor dv);

/* ---- ring.c: the job's own block goes round ---- */
void context_ring_forward(struct context_job *job);
void context_ring_backward(struct context_job *job);

/* ---- heads.c: between slices of the sequence and parts of the heads ---- */
void context_heads_forward(struct context_call *call, struct group *ulysses, struct group *ring);
void context_heads_backward(struct context_call *call, struct group *ulysses, struct group *ring);
bool context_heads_divide(const char *method, int parts, const struct context_shape *shape, char why[320]);

#endif
