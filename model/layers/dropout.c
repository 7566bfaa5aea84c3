/* dropout: what a block adds to the residual stream, with some of its elements left out.
 *
 *   y = m f(x)   m = 1 / (1 - p) where u >= p, else 0      u in [0, 1): a draw for each sequence, position and channel
 *   df = m dy    with the same m; it is not kept, but drawn again
 *
 * after attention's output projection and after the feed-forward network, or the experts, before the residual is added:
 * GPT-2's resid_pdrop, Megatron-LM's hidden_dropout. p = 0: nothing is drawn, copied or rounded.
 *
 * The draw depends on (seed, step, layer, place, sequence within the step, position, channel) and on nothing else, so every
 * layout and the standalone run have the same mask. Real systems draw from a generator's state that each rank moves on:
 * PyTorch from one a device; Megatron-LM from one that tensor ranks share for what they hold replicated and another,
 * seeded by rank, for what they hold sharded (its model-parallel tracker). There the mask depends on the layout, two
 * layouts can be compared by their statistics only, and whoever draws once more or once less shifts all that follows. By
 * position a mask is comparable to the bit; what a system can do wrong with its state is then a stream that is not the one
 * due (dropout.sequence, dropout.generator, recompute.restore_rng).
 *
 * Counter-based: a draw is one mixing of (stream, counter), counter = position * channels + channel. Limits: positions
 * times channels below 2^64; p in [0, 1). A product that is not finite is dropped like any other: 0.
 * Srivastava et al. 2014; scaled when training, as all of the above do. */
#include "model/layers/dropout.h"

#include <stdio.h>
#include <string.h>

#include "model/deviations.h"
#include "model/layers/sequence_parallel.h"
#include "model/precision.h"
#include "sim/assertion.h"
#include "sim/hash.h"

struct random_stream dropout_stream(uint64_t seed, int step, int layer, enum dropout_place place, int64_t sequence, int advanced)
{
    char name[128];
    int used = snprintf(name, sizeof name, "dropout step %d layer %d place %d sequence %lld", step, layer, (int)place, (long long)sequence);
    if (advanced > 0) snprintf(name + used, sizeof name - (size_t)used, " after %d", advanced);
    return random_stream(seed, name);
}

/* One row times its mask. Returns the digest with the mask's bits taken in. */
#define MASK_ROW(type)                                                                                  \
    for (int64_t c = 0; c < columns; c++) {                                                             \
        bool kept = random_unit_at(stream, first + (uint64_t)c) >= p;                                   \
        ((type *)row)[c] = kept ? ((const type *)from)[c] * (type)scale : 0;                            \
        digest = digest * 0x9e3779b97f4a7c15u + 1 + kept;                                               \
    }

static uint64_t mask_row(const struct random_stream *stream, uint64_t first, double p, void *row, const void *from, int64_t columns,
                         enum format storage, uint64_t digest)
{
    double scale = 1 / (1 - p);
    if (storage == FORMAT_FP64) {
        MASK_ROW(double)
    } else {
        MASK_ROW(float)
    }
    return digest;
}

/* Where row t stands in its sequence; local: among the rows of this rank alone. */
static uint64_t position_of(const struct layer_context *context, int64_t t, int64_t seq, bool local)
{
    return (uint64_t)(local ? t % seq : context->positions[sequence_row(context, t)]);
}

/* Sequence by sequence; row t of a sequence is that of its position. A mask's digest is the sum of its rows', each mixed with
 * where its counters begin, so that those of slices add up to the sequence's. */
static void mask(const struct layer_context *context, enum dropout_place place, int drawn, struct tensor to, struct tensor from, bool notes)
{
    const struct dropout_streams *d = &context->dropout;
    struct site_plan *plan = context->plan;
    int64_t columns = to.shape[1], seq = layer_slice_seq(context);
    size_t row_bytes = (size_t)(columns * format_storage_bytes(to.storage));
    bool local = context->cp && !decision_site(plan, &site_dropout_position, context->where, true, true);
    ASSERT(to.dims == 2 && to.shape[0] == layer_slice_rows(context) && tensor_is_dense(to) && tensor_is_dense(from));
    for (int64_t b = 0; b < context->batch; b++) {
        int64_t sequence = d->first_sequence + b;
        int64_t of = plan ? index_site(plan, &site_dropout_sequence, context->where, sequence, d->of_rank_0 + b, d->sequences) : sequence;
        struct random_stream stream = dropout_stream(d->seed, d->step, context->layer, place, of, drawn);
        struct draw draw = {.layer = context->layer, .place = place, .sequence = sequence, .stream = stream.key, .count = (uint64_t)(seq * columns)};
        if (seq > 0) draw.first = position_of(context, b * seq, seq, local) * (uint64_t)columns;
        for (int64_t t = b * seq; t < (b + 1) * seq; t++) {
            uint64_t first = position_of(context, t, seq, local) * (uint64_t)columns;
            draw.kept += hash_mix(mask_row(&stream, first, context->model->dropout, (char *)to.data + (size_t)t * row_bytes,
                                           (const char *)from.data + (size_t)t * row_bytes, columns, to.storage, first));
        }
        if (notes && d->note) d->note(d->owner, &draw);
    }
}

int dropout_forward(const struct layer_context *context, enum dropout_place place, struct tensor y)
{
    if (context->model->dropout == 0) return 0;
    int drawn = context->dropout.advanced + !decision_site(context->plan, &site_dropout_generator, context->where, true, true);
    mask(context, place, drawn, y, y, true);
    tensor_round(y, precision_activation(context->precision));
    return drawn;
}

struct tensor dropout_backward(const struct layer_context *context, enum dropout_place place, int drawn, struct tensor dy, struct arena *arena)
{
    if (context->model->dropout == 0) return dy;
    struct tensor masked = layer_slice_alloc(context, dy.shape[1], arena);
    mask(context, place, drawn, masked, dy, false);
    tensor_round(masked, context->precision->residual);
    return masked;
}
