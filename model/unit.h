/* unit: the parameters that are gathered and freed together on one rank (embedding, a layer, the head): their
 * master values, the copy that computes, gradients, optimizer state.
 *
 *   zero 0      whole parameters everywhere; gradients all-reduced over all data ranks (DDP)
 *   zero 1      each rank of dp_shard updates its part of each bucket, then gathers the others'; gradients all-reduced
 *   zero 2      the same parts, but gradients reduce-scattered, so that a rank gets its own part's sum alone
 *   zero 3      FSDP2: each parameter cut along dimension 0 into ceil(rows/S) rows a rank (the last ones may have
 *               fewer, or none; padded so that all move equal counts); unshard = all-gather before use
 * S = dp_shard, of experts the ranks of it with the same ones (experts.h). Over dp_replicate copies of shards are kept equal by an all-reduce of the reduced gradient (HSDP).
 * How gradients travel is bucket.h's.
 *
 * A rank owns slices: runs of elements of parameters. Master values, reduced gradient and moments are stored for
 * its slices, `full` and `grad` for the whole unit. Frozen parameters stand behind the trained ones in every
 * array: they are gathered, but no gradient of theirs is reduced, and none has moments that change. A parameter that
 * a backward does not reach (adapter.c) stands among the trained ones, with zeros where its gradient would be: they go
 * through buckets and reductions with the others; whether the optimizer takes them for one is train.no_gradient.
 *
 * Beside a unit's gradient stand probes: one number for each (step parity, data rank, micro-batch). The backward adds
 * the weight that its micro-batch's loss really had to its own probe; they pass through every addition, reduction and
 * division together with the gradient, so the weight that each micro-batch has in the end can be read off
 * the numbers. A probe is never rounded to a narrower format: it measures weights, not precision. */
#ifndef MODEL_UNIT_H
#define MODEL_UNIT_H

#include "collectives/collectives.h"
#include "model/ops.h"
#include "model/record.h"

struct unit_param {
    int param;                       /* index into the param_table */
    int dims;                        /* 1 or 2 */
    int64_t rows, columns;           /* of this rank's part, where tensor parallelism splits it */
    const struct param_info *info;
    bool frozen, adapter, no_decay;
    bool whole;                      /* on every tp rank, and known to be (tp.tag) */
    size_t full_at;                  /* elements, into full and grad */
    int64_t shard_rows;              /* zero 3: rows of each shard, padding included */
    size_t shard_at;                 /* zero 3: elements, into every rank's shard */
};

struct slice {                       /* what this rank owns of a parameter */
    int i;                           /* of the unit's parameters */
    int64_t first, count;            /* elements of the parameter; count may be 0 */
    size_t at;                       /* into master, reduced and moments */
};

/* A run of a unit's trained elements within one bucket (bucket.h). */
struct unit_piece { size_t from, count; size_t own_from, own_count, own_at; struct ledger reduced_ledger, partial_ledger; };

/* Whom a unit's parameters are shared with: the ranks that shard them within one dp_replicate, and those of all replicas. */
struct unit_groups { struct group *shard, *data; int shard_index, tp_copy; /* this rank's among them; which of the tp ranks that hold the same it is */ };

struct unit {
    int index, part;                 /* unit number; part 1: the tied copy of unit 0 on the last stage */
    bool is_experts;                 /* of a layer, apart from the rest of it (ep) */
    const struct unit_groups *groups;
    int layer_first;                 /* of a layer: the param that its list begins with */
    int count;
    struct unit_param *params;        /* [count] */
    struct slice *slices; int slices_count;
    struct unit_piece *pieces; int pieces_count; /* one, unless buckets cut through it */
    size_t full_count, trained_count;/* elements of full; those of them that have gradients */
    size_t shard_count, shard_trained_count;
    size_t probe_count;              /* 2 * D * M */
    bool sharded, unsharded;         /* sharded: full is gathered (zero 3); unsharded: it is there */
    struct collective *gathering;    /* an unshard under way */
    void *gathered;                  /* where it arrives */
    void *master;                    /* own slices, [shard_count] */
    void *captured;                  /* the optimizer's, where it holds others (fsdp.optimizer_params) */
    void *full;                      /* [full_count], rounded to precision.param */
    void *grad, *grad_probes;        /* accumulator of the backward: [full_count], [probe_count] */
    void *arrived_probes; struct ledger arrived_ledger; /* experts: whose gradients a micro-batch's backward brought here, of the whole ep group */
    void *reduced;                   /* [shard_trained_count + pieces_count * probe_count]: summed over ranks */
    void *partial;                   /* the same, with HSDP: set aside (hsdp.accumulate) */
    void *moment1, *moment2;         /* [shard_trained_count] */
    bool is_unreduced;               /* something was added to grad since its last reduction */
    int backwards;                   /* of this step */
    int ready_microbatch;            /* whose backward was the last */
    int begun_microbatch;            /* whose gradient is being added; -1: none of the step */
    bool is_narrow;                  /* its gradient alone is reduced, in bf16 (dp.reduce_source) */
    bool sync_now;                   /* its decision */
    int launched;                    /* pieces on their way since then */
    int updates;                     /* how often the optimizer has updated this unit: its own step count, as PyTorch's */
    bool *owners; int members;       /* who of the shard group owns some of it, and how many */
    struct ledger shard_version, full_version, grad_ledger;
    struct ledger summed_ledger;     /* of a second reduction: over replicas, over both copies of a tied embedding */
};

/* What a unit needs from its rank. */
struct unit_context {
    struct communicator *communicator;
    struct unit_groups dense, experts;
    struct group *replicate_group;   /* dp_replicate */
    const struct ops *ops;
    const struct run_config *config;
    struct site_plan *plan;
    struct rank_record *record;
    struct arena *arena;             /* run */
    struct bucket *buckets; int buckets_count; /* of the stage */
    int data_rank, data_ranks, microbatches;
    bool watch;                      /* of train_options */
};

static inline enum format unit_storage(const struct unit_context *context)
{
    return context->ops->storage;
}

static inline int unit_layer(const struct unit_context *context, int index)
{
    return unit_layer_of(&context->config->model, index);
}

/* ---- unit.c ---- */
/* `frozen`: by index into the param_table. */
void unit_init(struct unit *unit, const struct unit_context *context, int index, int part, const int *params,
               int params_count, const struct param_table *table, const bool *frozen);
/* The unit's own number of a parameter; -1: it has not got it. */
int unit_find_param(const struct unit *unit, int param);
/* Of the copies of whole parameters over the shard group, is this rank's the first? Where something is sharded there are none. */
bool unit_is_first_copy(const struct unit *unit, const struct unit_context *context);
/* Once its pieces are known (zero 1 and 2: from the buckets): what this rank owns, and the arrays for it. */
void unit_own(struct unit *unit, const struct unit_context *context);
void unit_load(struct unit *unit, const struct unit_context *context, void *const *initial);
/* Zero 3: the rows that the optimizer holds of shards that have fewer rows than the others. */
void unit_hold_rows(struct unit *unit, const struct unit_context *context, struct where where, const struct param_table *table);
void unit_done(struct unit *unit);

static inline char *element_at(const void *data, size_t element, enum format storage)
{
    return (char *)data + element * format_storage_bytes(storage);
}
struct tensor unit_param_tensor(const struct unit *unit, int i, enum format storage);
struct tensor unit_grad_tensor(const struct unit *unit, int i, enum format storage);
void *unit_reduced_probes(const struct unit *unit, int piece, enum format storage);

/* ---- unit_params.c ---- */
/* Zero 0 to 2: notes what the computing copy is when a step begins. */
void unit_note_full(const struct unit *unit, const struct unit_context *context, int step);
/* Starts the all-gather if the parameters aren't there and none is under way. */
void unit_unshard_start(struct unit *unit, const struct unit_context *context, struct where where);
/* Gathers the parameters if they aren't there, and notes which versions they are. */
void unit_unshard(struct unit *unit, const struct unit_context *context, struct where where, bool backward);
void unit_reshard(struct unit *unit, enum format storage);
/* Zero 0 to 2, after an update: the computing copy anew from the master values; zero 1 and 2: gathered. */
void unit_refresh(struct unit *units, int count, const struct unit_context *context, int step);

/* ---- unit_gradient.c ---- */
/* Smallest multiplicity over the unit's pieces, an origin at a time. */
void unit_reduced_ledger(const struct unit *unit, struct ledger *ret);
/* Reduced gradient, probes and ledgers times a factor. */
void unit_scale_reduced(struct unit *unit, const struct unit_context *context, double factor);
bool unit_has_gradient(const struct unit *unit);
/* A micro-batch's gradient is about to be added: what is there now, and whether it may stay. Once a micro-batch. */
void unit_begin_gradient(struct unit *unit, const struct unit_context *context, struct where where);
/* Before the first micro-batch of a step: gradients are zeroed, up to where parameters begin. */
void unit_zero_gradient(struct unit *unit, const struct unit_context *context, struct where where);
/* Empties the accumulator. */
void unit_clear_accumulator(struct unit *unit, enum format storage);
/* Notes a gradient's ledger and probes (of the reduced one), or sketch (of a local one). call_layer: of the reduction that takes it. */
void unit_record_gradient(const struct unit *unit, const struct unit_context *context, int step, int microbatch,
                          enum gradient_stage stage, int call_layer);

#endif
