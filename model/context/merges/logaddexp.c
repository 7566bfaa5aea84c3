/* logaddexp: both results times their weights.
 *
 *   l = log(e^l_a + e^l_b), the larger taken off before exp;   out = e^(l_a - l) out_a + e^(l_b - l) out_b
 *
 * A row that saw nothing in either stays 0 with l = -inf. Source: Milakov & Gimelshein 2018; Dao et al. 2022, Liu et al. 2023
 * (Ring Attention). */
#include "model/context/merging.h"

/* e^lse / (e^a + e^b) as it stands, which overflows where scores are large. */
static struct tensor unstable_weight(const struct merging *m, struct tensor lse, struct tensor a, struct tensor b)
{
    struct tensor part = merging_numbers(m, lse), sum = merging_numbers(m, lse), other = merging_numbers(m, lse);
    m->ops->exponential(part, lse);
    m->ops->exponential(sum, a);
    m->ops->exponential(other, b);
    for (int64_t i = 0; i < tensor_count(part); i++) row_set(part, i, row_get(part, i) / (row_get(sum, i) + row_get(other, i)));
    return part;
}

static void merge(const struct merging *m, struct context_partial *into, struct context_partial *block)
{
    struct tensor before = merging_numbers(m, into->lse);
    for (int64_t i = 0; i < tensor_count(before); i++) row_set(before, i, row_get(into->lse, i));
    merging_lse(m, into->lse, block->lse);
    struct tensor weight = m->stable ? merging_weights(m, before, into->lse) : unstable_weight(m, before, before, block->lse);
    struct tensor of_block = m->stable ? merging_weights(m, block->lse, into->lse) : unstable_weight(m, block->lse, before, block->lse);
    merging_combine(into->out, weight, block->out, of_block);
}

const struct context_merge context_merge_logaddexp = {.name = "logaddexp", .merge = merge};
