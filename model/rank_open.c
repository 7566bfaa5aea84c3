/* rank_open: see the header. */
#include "model/rank_open.h"

#include <string.h>

#include "model/plugin/plugin.h"
#include "sim/assertion.h"
#include "sim/coroutine.h"

struct communicator *rank_open_communicator(struct rank *rank, const struct run_config *config, const struct mesh *mesh, const struct train_options *options,
                                            struct rank_record *record)
{
    const struct layout *layout = &config->layout;
    const struct { const char *primitive, *algorithm; } named[] = {{"all_reduce", layout->all_reduce}, {"all_gather", layout->all_gather},
                                                                   {"reduce_scatter", layout->reduce_scatter}, {"all_to_all", layout->all_to_all}};
    struct communicator *ret = communicator_new(rank, mesh);
    record->communicator = ret;
    record->mute = options->mute;
    plugin_register(config->plugin, ret);
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        if (named[i].algorithm[0]) communicator_set_algorithm(ret, named[i].primitive, named[i].algorithm);
    }
    if (options->watch) communicator_watch(ret);
    return ret;
}

struct context_parallel rank_open_context(struct rank *rank, const struct run_config *config, struct communicator *communicator, struct context_ledgers *ledgers)
{
    const struct context_config *c = &config->layout.context;
    struct group *group = communicator_group(communicator, "cp");
    struct context_parallel cp = {.communicator = communicator, .group = group, .method = context_method_of(config),
        .layout = context_layout_find(c->layout[0] ? c->layout : "zigzag"), .merge = context_merge_find(c->merge[0] ? c->merge : "sigmoid"),
        .tree = c->tree, .overlap = c->overlap, .reversed = c->reversed, .ledgers = ledgers};
    ASSERT(cp.method && cp.layout && cp.merge);
    if (strcmp(c->method, "usp") != 0) return cp;
    int size = group->size, inner = c->ulysses > 1 ? c->ulysses : 1, *ranks = arena_alloc(rank_arena(rank, ARENA_RUN), (size_t)(size + 1) * sizeof *ranks);
    for (int i = 0; i < inner; i++) ranks[i] = group->ranks[group->me / inner * inner + i];
    cp.ulysses = communicator_group_of(communicator, "ulysses", ranks, inner);
    for (int i = 0; i < size / inner; i++) ranks[i] = group->ranks[i * inner + group->me % inner];
    cp.ring = communicator_group_of(communicator, "ring", ranks, size / inner);
    return cp;
}

struct factor_numbers rank_open_numbers(const struct layout *layout)
{
    return (struct factor_numbers){.M = 1, .D = layout->dp_replicate, .P = 1, .C = layout_cp(layout), .T = 1, .E = 1, .A = 1, .N = 1, .N_all = 1, .N_unshifted = 1,
                                   .n = 1, .n_rank = 1, .n_rank_unshifted = 1, .D_shard = 1, .D_replicate = layout->dp_replicate};
}
