/* layer: one transformer layer, its residual blocks one after the other.
 *
 *   h = attention_block(x)   y = feed_forward(h)          x, h, y [T,C]
 *
 * The backward runs them in reverse. The gradients between blocks stay in the arena because a block's
 * backward_weight reads its dy; the order of the blocks' weight gradients is that of the backward. */
#include "model/layers/layers.h"

#include "sim/assertion.h"

const struct layer_kind layer_kinds[LAYER_KIND_COUNT] = {
#define LAYER(name, weight_first, weight_last, bias_first, bias_last)                                                \
    [LAYER_KIND_##name] = { #name, weight_first, weight_last, bias_first, bias_last, name##_forward,                 \
                            name##_backward_input, name##_backward_weight, name##_forward_flops },
#include "model/layers.def"
#undef LAYER
};

/* What a layer of this model is made of, in forward order. */
enum { BLOCKS = 2 };
static const enum layer_kind_index layer_blocks[BLOCKS] = { LAYER_KIND_attention_block, LAYER_KIND_feed_forward };

struct layer_saved {
    void *block[BLOCKS];
};

static void layer_check(const struct layer_context *context, struct tensor t)
{
    ASSERT(t.dims == 2 && t.shape[0] == layer_rows(context) && t.shape[1] == context->model->dim);
    ASSERT(tensor_is_dense(t) && t.storage == context->ops->storage);
}

struct layer_saved *layer_forward(const struct layer_context *context, struct tensor y, struct tensor x,
                                  const struct layer_weights *weights, struct arena *arena)
{
    layer_check(context, x);
    layer_check(context, y);
    ASSERT(x.data != y.data);
    struct layer_saved *saved = arena_zalloc(arena, sizeof *saved);
    for (int i = 0; i < BLOCKS; i++) {
        struct tensor out = i == BLOCKS - 1 ? y : layer_matrix_alloc(context, context->model->dim, arena);
        saved->block[i] = layer_kinds[layer_blocks[i]].forward(context, out, x, weights, arena);
        x = out;
    }
    return saved;
}

void layer_backward_input(const struct layer_context *context, struct tensor dx, struct tensor dy,
                          const struct layer_weights *weights, struct layer_saved *saved, struct arena *arena)
{
    layer_check(context, dx);
    layer_check(context, dy);
    ASSERT(dx.data != dy.data);
    for (int i = BLOCKS - 1; i >= 0; i--) {
        struct tensor in = i == 0 ? dx : layer_matrix_alloc(context, context->model->dim, arena);
        layer_kinds[layer_blocks[i]].backward_input(context, in, dy, weights, saved->block[i], arena);
        dy = in;
    }
}

void layer_backward_weight(const struct layer_context *context, struct layer_weights *gradients,
                           struct layer_saved *saved)
{
    for (int i = BLOCKS - 1; i >= 0; i--)
        layer_kinds[layer_blocks[i]].backward_weight(context, gradients, saved->block[i]);
}

double layer_forward_flops(const struct model_config *model, int64_t tokens)
{
    double flops = 0;
    for (int i = 0; i < BLOCKS; i++)
        flops += layer_kinds[layer_blocks[i]].forward_flops(model, tokens);
    return flops;
}
