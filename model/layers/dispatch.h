/* dispatch: how a layer's rows get to the experts that they were routed to, and the experts' results back.
 *
 * A row is one (token, expert) pair that the router kept. Forward: plan, send, sort, then the experts of this rank run on
 * `in`, which gives `out`, then combine. Backward: combine_backward, the experts, backward. All members of an expert-parallel
 * group go through the same calls, whatever rows they have.
 *
 *   local        all experts are here
 *   all_to_all   rows go to the experts' ranks and come back; weights are applied at home        dispatch_all_to_all.c
 *   all_gather   every rank gets all tokens, and sums of weighed results go home                 dispatch_all_gather.c
 *   replicated   every rank has all tokens, and sums of weighed results go everywhere            dispatch_replicated.c
 *
 * An expert's rows come in the order of the ranks that they are from, then of their tokens. So where the ranks of a group have
 * consecutive tokens, its weights' gradient has the bits of one rank with all of them.
 *
 * Tensor-parallel ranks in one group that hold the same tokens (copies): each has one run of them, ceil(T/n) or fewer, and
 * sends that run's rows alone; what the experts give is gathered over them. */
#ifndef MODEL_LAYERS_DISPATCH_H
#define MODEL_LAYERS_DISPATCH_H

#include "model/layers/router.h"

/* Rows in the order of experts, as struct routing has them. */
struct dispatch_rows {
    int64_t rows;
    int64_t *bounds;                    /* [experts of the model + 1] */
    int32_t *from, *back_token, *back_slot;
    struct tensor weight;               /* [rows] */
};

/* What the experts of this rank run on: the rows that it is given, or, where it shares its experts' matrices with ranks that
 * have other tokens, those of all of them (dispatch_shares.c). */
struct dispatch_work {
    int64_t rows, *bounds;              /* [experts + 1] */
    struct tensor in, out;              /* [rows, C] */
};

struct dispatch {
    const struct dispatcher *kind;
    int64_t first_token, tokens;        /* the run of tokens whose rows this rank sends */
    struct dispatch_rows own;           /* those */
    struct group *copies;               /* tp ranks that have the others; NULL: there are none */
    int first, experts;                 /* experts of this rank */
    int taken;                          /* the first expert whose rows it takes; due: first */
    int64_t *arrived;                   /* [ranks * experts]: rows from each rank; local: NULL */
    int64_t rows, *bounds;              /* what they are given, in their order: [rows], [experts + 1] */
    struct tensor in, out;              /* [rows, C] */
    struct tensor own_in, own_out;      /* [own.rows, C] where this rank sees its own rows; else without data. own_in: until combine */
    struct dispatch_work work;
    struct shares *shares;              /* NULL: work is the rows above */
    void *state;                        /* of its kind */
};

struct dispatcher {
    const char *name;
    /* Who gets how much: rows, bounds and what else it will need. */
    void (*plan)(const struct layer_context *context, struct dispatch *d, struct arena *arena);
    /* Whatever has to move before the experts' ranks can make `in`. */
    void (*send)(const struct layer_context *context, struct dispatch *d, struct tensor normed, struct arena *arena);
    /* `in` from what arrived; called again where the recomputation drops it. */
    void (*sort)(const struct layer_context *context, struct dispatch *d, struct tensor normed, struct arena *arena);
    /* routed [T, C] += the weighed results of own rows. */
    void (*combine)(const struct layer_context *context, struct dispatch *d, struct tensor routed, struct arena *arena);
    /* From dy [T, C]: d_out [rows, C], the gradient of `out`; d_weight [T, top_k] += that of own rows' weights. */
    void (*combine_backward)(const struct layer_context *context, struct dispatch *d, struct tensor d_out, struct tensor d_weight,
                             struct tensor dy, struct arena *arena);
    /* d_normed [T, C] += the gradient of what own rows were copied from. */
    void (*backward)(const struct layer_context *context, struct dispatch *d, struct tensor d_normed, struct tensor d_rows, struct arena *arena);
};

enum dispatcher_index {
#define DISPATCHER(name) DISPATCHER_##name,
#include "model/layers/dispatchers.def"
#undef DISPATCHER
    DISPATCHER_COUNT
};
#define DISPATCHER(name) extern const struct dispatcher dispatcher_##name;
#include "model/layers/dispatchers.def"
#undef DISPATCHER

/* ---- dispatch.c: what the block calls ---- */
void dispatch_forward(const struct layer_context *context, struct dispatch *d, const struct routing *routing, struct tensor normed, struct arena *arena);
/* `in` once more. */
void dispatch_again(const struct layer_context *context, struct dispatch *d, struct tensor normed, struct arena *arena);
/* routed = the sum of the weighed results. */
void dispatch_combine(const struct layer_context *context, struct dispatch *d, struct tensor routed, struct arena *arena);
void dispatch_combine_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_out, struct tensor d_weight, struct tensor dy,
                               struct arena *arena);
void dispatch_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_normed, struct tensor d_rows, struct arena *arena);
/* Of `work`, the rows of expert e, counted from this rank's first. */
static inline struct tensor dispatch_rows_of(const struct dispatch *d, struct tensor rows, int e)
{
    return tensor_rows(rows, d->work.bounds[e], d->work.bounds[e + 1] - d->work.bounds[e]);
}

/* ---- dispatch_shares.c ---- */
bool dispatch_is_shared(const struct layer_context *context);
/* Do the ranks that share experts' matrices have different tokens? */
static inline bool dispatch_has_slices(const struct layer_context *context) { return context->sequence_split || context->is_slice; }
/* `work` from `in`; and once more. */
void dispatch_share(const struct layer_context *context, struct dispatch *d, struct arena *arena);
void dispatch_share_again(struct dispatch *d);
/* `out` from the work's, each expert's bias added (NULL: there are none). */
void dispatch_complete(const struct layer_context *context, struct dispatch *d, const struct tensor *const *biases);
/* d_out [rows, C] as the work's; from `arena`. */
struct tensor dispatch_share_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_out, struct arena *arena);
/* The gradient of rows from that of the work's; from scratch. */
struct tensor dispatch_complete_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_work);

/* ---- parts of it ---- */
struct comm dispatch_comm(const struct layer_context *context, const struct site *site);
struct buffer dispatch_buffer(struct tensor t, enum format wire);
/* d_out = the rows of dy that rows' results go to, times their weights; d_weight += their inner products with the results. */
void dispatch_weigh_backward(const struct layer_context *context, const struct dispatch_rows *rows, struct tensor out, struct tensor d_out,
                             struct tensor d_weight, struct tensor dy);
/* Chunks [a, b] of the given lengths, in the order [b, a]: which old row each new one is. */
void dispatch_transpose(const int64_t *lengths, int a_count, int b_count, int32_t *ret_index);
/* Rows that one rank can have for one expert: no rank has very many more tokens than this one. */
int64_t dispatch_most_rows(const struct layer_context *context);
/* A number of things that came over the wire: 0 where it is none, or more than `most`. */
int64_t dispatch_count(double value, int64_t most);
/* What rides with the gradient to the experts (struct expert_parallel); a rank whose tokens are a later run than the first has
 * nothing to add: the first one's stands for them. Elements; values into `to` [probe_count]. */
size_t dispatch_probes(const struct layer_context *context);
void dispatch_put_probes(const struct layer_context *context, const struct dispatch *d, void *to);
struct ledger *dispatch_ledger(const struct layer_context *context, const struct dispatch *d);
/* arrived_probes = the sum of `count` blocks, ascending, at from, from + stride, ... (elements). */
void dispatch_take_probes(const struct layer_context *context, const void *from, size_t stride, int count);

#endif
