/* experts: expert parallelism's place in a layout. See experts.h.
 *
 * The mesh is pp, dp_replicate, dp_shard, cp, tp, outermost first; what stands here of dp_shard is meant of dp_shard x cp, row-major,
 * where context parallelism splits sequences. An expert-parallel group is ep consecutive ranks of dp_shard
 * (with experts_over_tp: of dp_shard x tp, row-major) of one stage and replica; member i holds experts i * E/ep .. (i + 1) * E/ep - 1
 * of every layer. k = the ranks of dp_shard that a group spans:
 *
 *     ep                        over dp_shard: each tp rank has a group of its own, all alike (experts are replicated over tp)
 *     ep / tp, ep >= tp         over dp_shard x tp: no two tp ranks have the same experts
 *     1, ep < tp                over dp_shard x tp: tp / ep groups within one tp group, all alike
 *
 *   two replicas, dp_shard 4, ep 2     rank  0 1 2 3 | 4 5 6 7        experts 0-1: ranks 0 2 4 6    edp_shard: 0 2 | 1 3 | 4 6 | 5 7
 *                                      ep    0 0 1 1 | 2 2 3 3        experts 2-3: ranks 1 3 5 7    edp: 0 2 4 6 | 1 3 5 7
 *
 * What the experts' parameters are sharded and reduced over is the ranks of dp_shard with the same tp coordinate and the
 * same experts, S/k of them in steps of k (edp_shard), and those of all replicas (edp). Ranks of one tp group with the same
 * experts hold whole copies, which see the same tokens.
 *
 * WEIGHTS. With D data ranks, an expert's local gradient holds the tokens of all members of its group, so a sum over the S/k
 * ranks of edp_shard and the R replicas has every data rank's once, as the dense one over S and R has; it is divided by
 * the same number (D with reduce_op avg), not by the size of the group that it is summed over (torchtitan sets this
 * divisor; Megatron-LM multiplies by edp/dp before it averages; DeepSpeed #5259).
 *
 * REPLICATED. The members of a group read the same sequences: D = R * S/ep. Losses and token counts are summed over one
 * rank of each group (the ranks with the same place in theirs). Each member computes the whole dense gradient; dense parameters
 * are sharded over all S ranks all the same (zero 2, 3), so their reduce-scatter has every data rank's gradient ep times, and
 * its divisor is ep times as large. Their all-reduce (zero 0, 1) goes over one rank of each group, and has them once. An
 * expert's gradient is on one member of each group, which has all of its rows: nothing is to be added over the members.
 * Source: Megatron-LM core/parallel_state.py, torchtitan distributed/parallel_dims.py. */
#include "model/experts.h"

#include <stdlib.h>

#include "sim/assertion.h"

struct expert_place expert_place(const struct layout *layout, int experts, int shard, int tp)
{
    int ep = layout_ep(layout), span = layout_ep_shards(layout);
    int at = layout->experts_over_tp ? shard * layout->tp + tp : shard;
    struct expert_place place = {.group = at / ep, .me = at % ep, .count = experts / ep, .shard = shard / span, .shards = layout_shards(layout) / span};
    place.first = place.me * place.count;
    place.tp_copy = !layout->experts_over_tp || ep == 1 ? tp : ep < layout->tp ? tp / ep : 0;
    return place;
}

/* ---- groups ---- */

static int coordinate(const struct communicator *communicator, const struct mesh *mesh, const char *axis)
{
    return mesh_coordinate(mesh, rank_id(communicator_rank(communicator)), axis);
}

/* The rank at a place of dp_shard x cp. */
static int rank_at_shard(const struct mesh *mesh, int me, int shard)
{
    int cp = mesh->size[mesh_axis(mesh, "cp")];
    return mesh_rank_at(mesh, mesh_rank_at(mesh, me, "dp_shard", shard / cp), "cp", shard % cp);
}

static int shard_of(const struct communicator *communicator, const struct mesh *mesh)
{
    return coordinate(communicator, mesh, "dp_shard") * mesh->size[mesh_axis(mesh, "cp")] + coordinate(communicator, mesh, "cp");
}

/* `count` ranks from this one's axis position `first` in steps of `step`: of dp_shard, or of dp_shard x tp. */
static struct group *along(struct communicator *communicator, const struct mesh *mesh, const char *name, int first, int step, int count, bool over_tp)
{
    int *ranks = memory_alloc((size_t)count * sizeof *ranks), me = rank_id(communicator_rank(communicator)), tp = mesh->size[mesh_axis(mesh, "tp")];
    for (int i = 0; i < count; i++) {
        int at = first + i * step;
        ranks[i] = rank_at_shard(mesh, me, over_tp ? at / tp : at);
        if (over_tp) ranks[i] = mesh_rank_at(mesh, ranks[i], "tp", at % tp);
    }
    struct group *group = communicator_group_of(communicator, name, ranks, count);
    free(ranks);
    return group;
}

void expert_groups(struct communicator *communicator, const struct mesh *mesh, const struct layout *layout, int experts, struct expert_parallel *ret)
{
    int ep = layout_ep(layout), inner = layout->ep_inner, tp = coordinate(communicator, mesh, "tp");
    bool over_tp = layout->experts_over_tp;
    struct expert_place place = expert_place(layout, experts, shard_of(communicator, mesh), tp);
    *ret = (struct expert_parallel){.communicator = communicator, .dispatcher = layout->dispatcher, .over_tp = layout->experts_over_tp, .first = place.first, .count = place.count};
    if (layout->etp > 1) ret->tensor = communicator_group(communicator, "tp");
    int begin = place.group * ep;
    ret->group = along(communicator, mesh, "ep", begin, 1, ep, over_tp);
    if (inner > 1 && inner < ep) {
        ret->inner = along(communicator, mesh, "ep_inner", begin + place.me / inner * inner, 1, inner, over_tp);
        ret->outer = along(communicator, mesh, "ep_outer", begin + place.me % inner, inner, ep / inner, over_tp);
    }
    if (!over_tp || ep == 1 || layout->tp == 1 || layout->sequence_parallel) return;
    int copies = ep < layout->tp ? ep : layout->tp, row = (begin + place.me) / copies * copies;
    ret->copies = along(communicator, mesh, "ep_copies", row, 1, copies, true);
}

struct group *shard_group(struct communicator *communicator, const struct layout *layout)
{
    static const char *const axes[] = {"dp_shard", "cp"};
    if (layout_cp(layout) == 1) return communicator_group(communicator, "dp_shard");
    return communicator_group_over(communicator, layout_shard_group(layout), axes, 2);
}

struct group *expert_shard_group(struct communicator *communicator, const struct mesh *mesh, const struct layout *layout)
{
    int span = layout_ep_shards(layout), shard = shard_of(communicator, mesh);
    if (span == 1) return shard_group(communicator, layout);
    return along(communicator, mesh, "edp_shard", shard % span, span, layout_shards(layout) / span, false);
}

/* The ranks of all replicas in steps of `span` within dp_shard. */
static struct group *over_replicas(struct communicator *communicator, const struct mesh *mesh, const struct layout *layout, const char *name, int span)
{
    static const char *const data_axes[] = {"dp_replicate", "dp_shard", "cp"};
    if (span == 1) return communicator_group_over(communicator, layout_data_group(layout), data_axes, layout_cp(layout) > 1 ? 3 : 2);
    int each = layout_shards(layout) / span, count = layout->dp_replicate * each, me = rank_id(communicator_rank(communicator));
    int *ranks = memory_alloc((size_t)count * sizeof *ranks), first = shard_of(communicator, mesh) % span;
    for (int i = 0; i < count; i++)
        ranks[i] = rank_at_shard(mesh, mesh_rank_at(mesh, me, "dp_replicate", i / each), first + i % each * span);
    struct group *group = communicator_group_of(communicator, name, ranks, count);
    free(ranks);
    return group;
}

struct group *expert_data_group(struct communicator *communicator, const struct mesh *mesh, const struct layout *layout)
{
    return over_replicas(communicator, mesh, layout, layout->dispatcher == DISPATCH_REPLICATED ? layout_data_group(layout) : "edp", layout_ep_shards(layout));
}

struct group *sequence_group(struct communicator *communicator, const struct mesh *mesh, const struct layout *layout)
{
    return over_replicas(communicator, mesh, layout, layout_data_group(layout), layout_shards_alike(layout));
}
