/* experts: what expert parallelism makes of a layout: who holds which experts, and the groups that follow. */
#ifndef MODEL_EXPERTS_H
#define MODEL_EXPERTS_H

#include "collectives/collectives.h"
#include "model/transformer.h"

/* Where a rank stands: member `me` of its expert-parallel group. */
struct expert_place {
    int group, me;                   /* of the groups of its dp_replicate and pp, in the order of its flattened axis */
    int first, count;                /* experts */
    int tp_copy;                     /* which of the tp ranks with the same experts (0: the first) */
    int shard, shards;               /* among the ranks of its dp_shard x cp, or of that x tp, with the same experts: what shares their parameters */
};
struct expert_place expert_place(const struct layout *layout, int experts, int shard, int tp);

/* The groups of the experts' layers; every rank of a stage calls it. With ep 1 (and etp tp) `group` has one member. */
void expert_groups(struct communicator *communicator, const struct mesh *mesh, const struct layout *layout, int experts, struct expert_parallel *ret);
/* What shards parameters: dp_shard, or dp_shard x cp. */
struct group *shard_group(struct communicator *communicator, const struct layout *layout);
/* Of the experts' parameters: what shards them (within one dp_replicate), and all ranks that hold the same; with ep 1
 * dp_shard and dp. */
struct group *expert_shard_group(struct communicator *communicator, const struct mesh *mesh, const struct layout *layout);
struct group *expert_data_group(struct communicator *communicator, const struct mesh *mesh, const struct layout *layout);
/* One rank for each run of sequences that are read: what losses and counts of tokens are summed over. */
struct group *sequence_group(struct communicator *communicator, const struct mesh *mesh, const struct layout *layout);

#endif
