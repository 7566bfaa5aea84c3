/* router_slices: what a router whose tokens are a slice of each sequence needs of the slices on the other ranks: of tp with
 * sequence parallelism, of cp with context parallelism, of cp x tp with both.
 *
 *   counts    the tokens of a cell, and n_e of the balancing loss, are sums over them; the sums of p stay the rank's own. So a
 *             rank's auxiliary losses, and their gradients, are its tokens' part of the cell's: values add up to it
 *             (Megatron-LM: n_e reduced over tp and cp, p local)
 *   pairs     an expert's room is that of the whole cell: each rank gets all pairs' experts and what they are ranked by, in
 *             the order of sequences, and decides alike (Megatron-LM gives each rank the room of its own tokens)
 * In fp64, exact. A slice: model/layers/sequence_parallel.h. */
#include <string.h>

#include "model/layers/router.h"
#include "model/layers/sequence_parallel.h"

void router_sum_counts(const struct layer_context *context, struct routing *routing)
{
    const struct token_slices *slices = context->tokens;
    if (!slices) return;
    int64_t cells = routing->cells, experts = context->model->moe.experts, count = cells * (experts + 1);
    struct comm how = {.site = &site_sp_aux_count_reduce, .where = context->where};
    struct arena_mark mark = arena_mark(context->scratch);
    double *all = arena_alloc(context->scratch, (size_t)count * sizeof *all);
    for (int64_t c = 0; c < cells; c++) all[c] = (double)routing->cell_tokens[c];
    for (int64_t i = 0; i < cells * experts; i++) all[cells + i] = (double)routing->aux_counts[i];
    all_reduce(slices->communicator, slices->group, &how, (struct buffer){all, (size_t)count, FORMAT_FP64, FORMAT_FP64, NULL}, REDUCE_SUM);
    for (int64_t c = 0; c < cells; c++) routing->cell_tokens[c] = all[c] >= 0 && all[c] < 1e15 ? (int64_t)all[c] : 0;
    for (int64_t i = 0; i < cells * experts; i++) routing->aux_counts[i] = all[cells + i] >= 0 && all[cells + i] < 1e15 ? (int64_t)all[cells + i] : 0;
    arena_release(context->scratch, mark);
}

int64_t router_pair_among_all(const struct layer_context *context, int member, int64_t pair)
{
    const struct token_slices *slices = context->tokens;
    if (!slices) return pair;
    int64_t top_k = context->model->moe.top_k, token = pair / top_k, sequence = token / slices->rows[member];
    return (sequence * slices->seq + slices->positions[member][token]) * top_k + pair % top_k;
}

int64_t router_token_among_all(const struct layer_context *context, int64_t token)
{
    return context->tokens && context->seq > 0 ? token / context->seq * context->tokens->seq : token;
}

void router_gather_pairs(const struct layer_context *context, double *by, int32_t *chosen, int64_t own)
{
    const struct token_slices *slices = context->tokens;
    int members = slices->group->size, experts = context->model->moe.experts;
    struct comm how = {.site = &site_sp_capacity_gather, .where = context->where};
    struct arena_mark mark = arena_mark(context->scratch);
    size_t count = 2 * (size_t)own, all = 0, *counts = arena_alloc(context->scratch, (size_t)members * sizeof *counts);
    for (int m = 0; m < members; m++) all += counts[m] = 2 * (size_t)(context->batch * slices->rows[m] * context->model->moe.top_k);
    double *sent = arena_alloc(context->scratch, (count + 1) * sizeof *sent), *arrived = arena_alloc(context->scratch, all * sizeof *arrived);
    for (int64_t i = 0; i < own; i++) {
        sent[i] = by[i];
        sent[own + i] = chosen[i];
    }
    all_gather(slices->communicator, slices->group, &how, (struct buffer){arrived, all, FORMAT_FP64, FORMAT_FP64, NULL},
               (struct buffer){sent, count, FORMAT_FP64, FORMAT_FP64, NULL}, counts);
    const double *from = arrived;
    for (int m = 0; m < members; m++) {
        int64_t pairs = (int64_t)counts[m] / 2;
        for (int64_t i = 0; i < pairs; i++) {
            double expert = from[pairs + i];
            int64_t at = router_pair_among_all(context, m, i);
            by[at] = from[i];
            chosen[at] = expert >= 0 && expert < experts ? (int32_t)expert : -1; /* what a damaged message gives is nobody's */
        }
        from += counts[m];
    }
    arena_release(context->scratch, mark);
}
