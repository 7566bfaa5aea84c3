/* sigmoid: what there is moves towards the block's result.
 *
 *   out <- out - g (out - out_b),  g = sigmoid(l_b - l) = e^l_b / (e^l + e^l_b);     l <- log(e^l + e^l_b) = l - log sigmoid(l - l_b)
 *
 * In the difference nothing overflows; where the block saw nothing g = 0, where nothing was there g = 1.
 * Source: zhuzilin/ring-flash-attention utils.py; PyTorch _context_parallel _SDPAMerger. */
#include "model/context/merging.h"

static void weights(const struct merging *m, struct tensor g, struct tensor lse, struct tensor block)
{
    int64_t rows = tensor_count(g);
    if (m->stable) {
        for (int64_t i = 0; i < rows; i++) {
            bool nothing = row_get(block, i) == -INFINITY;
            row_set(g, i, nothing ? -INFINITY : row_get(block, i) - row_get(lse, i));
        }
        m->ops->sigmoid_forward(g, g);
        return;
    }
    struct tensor a = merging_numbers(m, g), b = merging_numbers(m, g);
    m->ops->exponential(a, lse);
    m->ops->exponential(b, block);
    m->ops->vector_add(a.data, a.data, b.data, (size_t)rows);
    for (int64_t i = 0; i < rows; i++) row_set(g, i, row_get(b, i) / row_get(a, i));
}

static void merge(const struct merging *m, struct context_partial *into, struct context_partial *block)
{
    struct tensor g = merging_numbers(m, into->lse);
    weights(m, g, into->lse, block->lse);
    merging_lse(m, into->lse, block->lse);
    int64_t rows = into->out.shape[0], width = into->out.shape[1];
#define MOVE(real)                                                                                                        \
    for (int64_t i = 0; i < rows; i++) {                                                                                  \
        real *o = (real *)into->out.data + i * width, by = ((const real *)g.data)[i];                                     \
        const real *y = (const real *)block->out.data + i * width;                                                        \
        for (int64_t c = 0; c < width; c++) o[c] -= by * (o[c] - y[c]);                                                   \
    }
    if (into->out.storage == FORMAT_FP64) { MOVE(double) }
    else { MOVE(float) }
#undef MOVE
}

const struct context_merge context_merge_sigmoid = {.name = "sigmoid", .merge = merge};
