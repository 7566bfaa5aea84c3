/* late: all blocks' outputs are kept; their log-sum-exps are merged first, and each output is scaled once, at the end.
 *
 *   merge        l <- max + log(1 + e^(min - max));  the block is kept with its own l_b
 *   at the end   out = sum over blocks, in order, of e^(l_b - l) out_b
 *
 * Memory: P outputs. Source: NVIDIA TransformerEngine context_parallel.py (flash_attn_fwd_softmax_lse_correction,
 * flash_attn_fwd_out_correction). */
#include <string.h>

#include "model/context/merging.h"

static void begin(const struct merging *m, struct context_partial *block)
{
    size_t bytes = (size_t)tensor_bytes(block->lse);
    block->extra = tensor_1d(arena_alloc(m->scratch, bytes + 1), block->lse.storage, tensor_count(block->lse));
    if (bytes > 0) memcpy(block->extra.data, block->lse.data, bytes); /* its own; lse becomes that of all */
    block->next = NULL;
    block->last = block;
}

static void merge(const struct merging *m, struct context_partial *into, struct context_partial *block)
{
    merging_lse(m, into->lse, block->lse);
    into->last->next = block;
    into->last = block->last;
}

static void finish(const struct merging *m, struct context_partial *all)
{
    if (!all->next) return;
    struct tensor weight = merging_weights(m, all->extra, all->lse), none = {.data = NULL};
    m->ops->scale_rows(all->out, all->out, weight);
    for (const struct context_partial *block = all->next; block; block = block->next)
        merging_combine(all->out, none, block->out, merging_weights(m, block->extra, all->lse));
}

const struct context_merge context_merge_late = {.name = "late", .keeps_blocks = true, .begin = begin, .merge = merge, .finish = finish};
