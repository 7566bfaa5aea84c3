/* bucket: what goes through one gradient reduction.
 *
 *   zero 3      a bucket a unit, its gradient laid out shard by shard
 *   zero 0..2   the stage's trained elements, last unit first as backward makes them, cut every
 *               layout.bucket_elements (0: at every unit): a bucket may hold pieces of several units, a parameter may
 *               lie in several buckets (DDP's and Megatron-LM's buckets). The end of a bucket is padded so that
 *               its shards are equal and a multiple of layout.bucket_alignment elements. Where the embedding is tied
 *               and apart, it has buckets of its own, so that both copies are cut alike.
 *
 * Experts that are units of their own (ep) lie in buckets of their own, cut alike, behind the others.
 *
 * A bucket is launched when all its units' backwards of a micro-batch are done and each of them said "now"; the
 * reduction runs on while earlier units compute, and is taken over (divided, added to the reduced gradient of its
 * units' slices) when the next unit's backward ends (zero 2, 3), when the bucket is needed again, or at the flush.
 * Behind its elements travel the probes of its pieces. The ledger of a bucket is the sum of its pieces', each term's
 * part telling the piece: part + 2 * piece. */
#ifndef MODEL_BUCKET_H
#define MODEL_BUCKET_H

#include "model/choices.h"
#include "model/unit.h"

struct bucket_piece { struct unit *unit; int piece; size_t at; }; /* at: elements, into the bucket */

struct bucket {
    int index;
    bool is_experts;                 /* of experts' units alone, with their groups */
    const struct unit_groups *groups;
    struct bucket_piece *pieces; int pieces_count;
    size_t count;                    /* elements, padding included; zero 3: of one shard */
    size_t shard_count;              /* of one member's part; count where nothing is scattered */
    size_t probe_count;              /* of all pieces */
    void *sent, *pending;            /* what goes in; what comes out (one buffer where it is all-reduced) */
    struct collective *reducing;
    bool is_pending;
    bool sent_finite;                /* noted with train.check_finite */
    bool has_adapter;                 /* a parameter that not every backward reaches */
    struct where where;              /* of its launch; before: of the unit that completes it */
    struct memory_range taken;       /* of its own part of the result, elements (dp.bucket); due: all */
    void *kept;                      /* this rank's own part as it went in, where not all of it is taken */
    const double *sent_sketch;       /* of each member's part, probes left out: in the record */
    struct ledger sent_ledger, pending_ledger;
    void *gathered;                  /* zero 1, 2: updated parameters of all members */
    struct collective *gathering;    /* under way */
    struct ledger own_version, gathered_version;
};

static inline bool bucket_is_scattered(const struct unit_context *context)
{
    return context->config->layout.zero >= ZERO_2;
}

static inline const struct site *bucket_reduction_site(const struct bucket *bucket, const struct unit_context *context)
{
    if (bucket->is_experts) return &site_ep_reduce_grad;
    return bucket_is_scattered(context) ? &site_fsdp_reduce_grad : &site_dp_all_reduce_grad;
}

/* What the reduction gives this rank, probes left out. */
static inline size_t bucket_own_length(const struct bucket *bucket, const struct unit_context *context)
{
    return bucket_is_scattered(context) ? bucket->shard_count : bucket->count;
}

/* ---- bucket_cut.c ---- */

/* The stage's buckets; fills the units' pieces and what of them this rank owns, and the units' arrays. */
void buckets_make(struct unit_context *context, struct unit *units, int units_count);
void buckets_done(struct bucket *buckets, int count);

/* ---- bucket.c: launching ---- */
/* After a unit's backward: what is pending is taken over, buckets that are complete are launched. */
void bucket_backward_done(struct unit *unit, const struct unit_context *context, struct where where);
/* A sum in fp16 may overflow where its mean would not: as FSDP, part of the division comes before the reduction, the
 * power of two next to the root of the ranks. 1: all of it after. */
double bucket_predivisor(const struct unit_context *context);

/* ---- bucket_finite.c: with train.check_finite ---- */
void bucket_look_before(struct bucket *bucket, const struct unit_context *context);
void bucket_look(const struct bucket *bucket, const struct unit_context *context);

/* ---- bucket_take.c ---- */
/* Waits for an outstanding reduction and adds its result to the reduced gradients. */
void bucket_apply(struct bucket *bucket, const struct unit_context *context, struct where where);

/* ---- bucket_gather.c ---- */
/* Zero 1, 2: starts gathering what every member has updated; waits for it and copies it to the units' computing copies. */
void bucket_gather_start(struct bucket *bucket, const struct unit_context *context, int step);
void bucket_gather_wait(struct bucket *bucket, const struct unit_context *context, int step);

#endif
