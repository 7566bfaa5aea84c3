/* logaddexp: both results times their weights.
 *
 *   l = log(e^l_a + e^l_b), the larger taken off before exp;   out = e^(l_a - l) out_a + e^(l_b - l) out_b
 *
 * A row that saw nothing in either stays 0 with l = -inf. Source: Milakov & Gimelshein 2018; Dao et al. 2022, Liu et al. 2023
 * (Ring Attention). */
#include "model/context/merging.h"

static void merge(const struct merging *m, struct context_partial *into, struct context_partial *block)
{
    struct tensor before = merging_numbers(m, into->lse);
    for (int64_t i = 0; i < tensor_count(before); i++) row_set(before, i, row_get(into->lse, i));
    merging_lse(m, into->lse, block->lse);
    struct tensor unstable = m->stable ? before : merging_numbers(m, before);
    if (!m->stable) { /* e^l / e^whole, both as they are */
        struct tensor whole = merging_numbers(m, before), part = merging_numbers(m, before);
        m->ops->exponential(whole, into->lse);
        m->ops->exponential(unstable, before);
        m->ops->exponential(part, block->lse);
        for (int64_t i = 0; i < tensor_count(before); i++) {
            row_set(unstable, i, row_get(unstable, i) / row_get(whole, i));
            row_set(part, i, row_get(part, i) / row_get(whole, i));
        }
        merging_combine(into->out, unstable, block->out, part);
        return;
    }
    merging_combine(into->out, merging_weights(m, before, into->lse), block->out, merging_weights(m, block->lse, into->lse));
}

const struct context_merge context_merge_logaddexp = {.name = "logaddexp", .merge = merge};
