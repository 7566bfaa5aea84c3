/* unit: what FSDP shards, gathers and reduces together, on one rank: its parameters' shard, their
 * unsharded copy while it computes, gradients on their way, optimizer state.
 *
 * ZeRO-3 as FSDP2 does it: each parameter is cut along dimension 0 into ceil(rows/D) rows a rank (the
 * last ones may have fewer, or none; padded so that all ranks move equal counts). Unshard = all-gather,
 * gradients = reduce-scatter. ZeRO-0: whole parameters, gradients all-reduced.
 *
 * Behind a unit's gradient stand probes: one number for each (step parity, data rank, micro-batch). The
 * backward adds the weight that its micro-batch's loss really had to its own probe; they pass through every
 * addition, reduction and division together with the gradient, so the weight that each micro-batch has
 * in the end can be read off the numbers. */
#ifndef MODEL_UNIT_H
#define MODEL_UNIT_H

#include "collectives/collectives.h"
#include "model/ops.h"
#include "model/record.h"

struct unit_param {
    int param;                       /* index into the param_table */
    int dims;                        /* 1 or 2 */
    int64_t rows, columns;
    int64_t shard_rows, first_row, my_rows; /* padded rows a shard; this rank's own */
    size_t full_at, shard_at;        /* elements */
};

struct unit {
    int index, part;                 /* unit number; part 1: the tied copy of unit 0 on the last stage */
    int count;
    struct unit_param params[LAYER_PARAMS_MAX];
    size_t full_count, shard_count, probe_count;
    bool sharded, unsharded;         /* sharded: ZeRO-3 */
    void *shard, *full;              /* parameters; full is shard where not sharded */
    void *grad;                      /* full_count + probe_count: the accumulator of the backward */
    void *grad_shard, *pending;      /* shard_count + probe_count: reduced and added; reduced, not yet added */
    void *moment1, *moment2;         /* shard_count */
    bool is_pending, is_unreduced;   /* unreduced: something was added to grad since its last reduction */
    int backwards;                   /* of this step */
    int updates;                     /* how often the optimizer has updated this unit: its own step count, as PyTorch's */
    struct ledger shard_version, full_version, grad_ledger, grad_shard_ledger, pending_ledger;
};

/* What a unit needs from its rank. */
struct unit_context {
    struct communicator *communicator;
    struct group *shard_group;       /* gathers and scatters over */
    struct group *data_group;        /* all-reduces over, where not sharded */
    const struct ops *ops;
    struct site_plan *plan;
    struct rank_record *record;
    struct arena *arena;             /* run */
    void *gathered, *work;           /* all shards of a unit side by side; gradients laid out by shards */
    int data_rank, data_ranks, microbatches;
    enum fsdp_reduce reduce_op;
};

void unit_init(struct unit *unit, const struct unit_context *context, int index, int part, const int *params,
               int params_count, const struct param_table *table, bool sharded);
void unit_done(struct unit *unit);
size_t unit_work_count(const struct unit *unit, int shards); /* elements that gathered and work need */

struct tensor unit_param_tensor(const struct unit *unit, int i, enum format storage);
struct tensor unit_grad_tensor(const struct unit *unit, int i, enum format storage);
void *unit_probes(const struct unit *unit, enum format storage);

/* Gather the parameters if they aren't there, and note which versions they are. */
void unit_unshard(struct unit *unit, const struct unit_context *context, struct where where, bool backward);
void unit_reshard(struct unit *unit, enum format storage);

/* After a backward: add what is pending, reduce now if it is time, empty the accumulator if it was reduced. */
void unit_post_backward(struct unit *unit, struct unit *stage_units, int stage_units_count,
                        const struct unit_context *context, struct where where, enum sync_mode sync);
/* Adds the outstanding reduction to the sharded gradient. */
void unit_apply_pending(struct unit *unit, const struct unit_context *context, struct where where);
/* Notes a gradient's ledger (and probes, of the reduced one). */
void unit_record_gradient(const struct unit *unit, const struct unit_context *context, int step, int microbatch,
                          enum gradient_stage stage);

#endif
