/* max_sum: numerator and denominator are kept apart, and divided at the end.
 *
 *   kept         n = sum of e^(s - m) v, d = sum of e^(s - m), m the largest so far; a block comes as n = out, d = 1, m = its lse
 *   merge        m' = max(m, m_b);  n <- e^(m - m') n + e^(m_b - m') n_b;  d alike
 *   at the end   out = n / d, l = m + log d
 *
 * Source: lucidrains/ring-attention-pytorch; Ascend's fused attention gives (max, sum), merged so by yunchang (update_npu_out)
 * and MindSpeed. There m is the largest score; any m that is near it does. */
#include "model/context/merging.h"

static void begin(const struct merging *m, struct context_partial *block)
{
    block->extra = tensor_1d(arena_alloc(m->scratch, (size_t)tensor_bytes(block->lse) + 1), block->lse.storage, tensor_count(block->lse));
    for (int64_t i = 0; i < tensor_count(block->lse); i++) row_set(block->extra, i, row_get(block->lse, i) == -INFINITY ? 0 : 1);
}

static void merge(const struct merging *m, struct context_partial *into, struct context_partial *block)
{
    struct tensor largest = merging_numbers(m, into->lse), a = merging_numbers(m, into->lse), b = merging_numbers(m, into->lse);
    int64_t rows = tensor_count(largest);
    for (int64_t i = 0; i < rows; i++) {
        double mine = row_get(into->lse, i), other = row_get(block->lse, i), both = mine > other ? mine : other;
        row_set(largest, i, m->stable || both == -INFINITY ? both : 0);
        row_set(a, i, mine - merging_shift(m, mine, other));
        row_set(b, i, other - merging_shift(m, mine, other));
    }
    m->ops->exponential(a, a);
    m->ops->exponential(b, b);
    merging_combine(into->out, a, block->out, b);
    merging_combine(tensor_2d(into->extra.data, into->extra.storage, rows, 1), a, block->extra, b);
    for (int64_t i = 0; i < rows; i++) row_set(into->lse, i, row_get(largest, i));
}

static void finish(const struct merging *m, struct context_partial *all)
{
    struct tensor sums = merging_numbers(m, all->lse);
    int64_t rows = tensor_count(sums), width = all->out.shape[1];
    m->ops->logarithm(sums, all->extra);
    for (int64_t i = 0; i < rows; i++) {
        double sum = row_get(all->extra, i);
        if (sum == 0) continue; /* saw nothing: 0, -inf */
        row_set(all->lse, i, row_get(all->lse, i) + row_get(sums, i));
        for (int64_t c = 0; c < width && sum != 1; c++) row_set(all->out, i * width + c, row_get(all->out, i * width + c) / sum);
    }
}

const struct context_merge context_merge_max_sum = {.name = "max_sum", .begin = begin, .merge = merge, .finish = finish};
