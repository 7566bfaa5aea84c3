/* layer: one transformer layer, its residual blocks one after the other.
 *
 *   h = attention_block(x)   y = feed_forward(h)          x, h, y [T,C]
 *
 * The backward runs them in reverse. The gradients between blocks stay in the arena because a block's
 * backward_weight reads its dy; the order of the blocks' weight gradients is that of the backward. */
#include "model/layers/attention.h"
#include "model/layers/layers.h"

#include "model/choices.h"
#include "model/deviations.h"

#include "sim/assertion.h"

const struct layer_kind layer_kinds[LAYER_KIND_COUNT] = {
#define LAYER(name)                                                                                \
    [LAYER_KIND_##name] = { #name, name##_params, name##_forward, name##_backward_input,           \
                            name##_backward_weight, name##_forward_flops },
#include "model/layers.def"
#undef LAYER
};

/* What a layer of this model is made of. */
struct layer_blocks layer_blocks(const struct model_config *model, int layer)
{
    struct layer_blocks blocks = { .kind = {
        model->attention == ATTENTION_MLA ? LAYER_KIND_mla_attention : LAYER_KIND_attention_block,
        model_layer_has_experts(model, layer) ? LAYER_KIND_moe : LAYER_KIND_feed_forward } };
    for (int i = 0; i < LAYER_BLOCKS; i++)
        blocks.weights_at[i + 1] = blocks.weights_at[i] + layer_kinds[blocks.kind[i]].params(model, layer, NULL);
    return blocks;
}

void layer_note(const struct layer_context *context, const struct site *site, int part, struct tensor rows)
{
    if (context->note != NULL) context->note(context->note_owner, site, part, rows);
}

bool layer_choice(const struct layer_context *context, const struct site *site, int unit, bool due)
{
    if (!context->record) return decision_site(context->plan, site, context->where, due, due);
    return choice_site(context->plan, context->record, site, context->where, unit, due);
}

void layer_tensor(const struct layer_context *context, const struct site *site, int part, struct tensor rows)
{
    tensor_site(context->plan, site, context->where, rows);
    layer_note(context, site, part, rows);
}

struct layer_saved {
    struct layer_blocks blocks;
    void *block[LAYER_BLOCKS];
};

int layer_params_count(const struct model_config *model, int layer)
{
    return layer_blocks(model, layer).weights_at[LAYER_BLOCKS];
}

void layer_params(const struct model_config *model, int layer, struct param_info *ret)
{
    struct layer_blocks blocks = layer_blocks(model, layer);
    for (int i = 0; i < LAYER_BLOCKS; i++) {
        int first = blocks.weights_at[i];
        layer_kinds[blocks.kind[i]].params(model, layer, ret + first);
        for (int k = first; k < blocks.weights_at[i + 1]; k++) {
            if (ret[k].of_matrix != PARAM_NONE) ret[k].of_matrix += first;
            if (ret[k].through_softmax != PARAM_NONE) ret[k].through_softmax += first;
        }
    }
}

/* A block's context: layer_part_context. */
static struct layer_context block_context(const struct layer_context *context, int block)
{
    return layer_part_context(context, block == 0 ? TENSOR_ATTENTION : TENSOR_FEED_FORWARD);
}

static void layer_check(const struct layer_context *context, struct tensor t)
{
    ASSERT(t.dims == 2 && t.shape[0] == layer_slice_rows(context) && t.shape[1] == context->model->dim);
    ASSERT(tensor_is_dense(t) && t.storage == context->ops->storage);
}

struct layer_saved *layer_forward(const struct layer_context *context, struct tensor y, struct tensor x,
                                  const struct tensor *weights, struct arena *arena)
{
    layer_check(context, x);
    layer_check(context, y);
    ASSERT(x.data != y.data);
    struct layer_saved *saved = arena_zalloc(arena, sizeof *saved);
    saved->blocks = layer_blocks(context->model, context->layer);
    for (int i = 0; i < LAYER_BLOCKS; i++) {
        struct tensor out = i == LAYER_BLOCKS - 1 ? y : layer_slice_alloc(context, context->model->dim, arena);
        struct layer_context own = block_context(context, i);
        saved->block[i] = layer_kinds[saved->blocks.kind[i]].forward(&own, out, x, weights + saved->blocks.weights_at[i], arena);
        x = out;
    }
    return saved;
}

void layer_backward_input(const struct layer_context *context, struct tensor dx, struct tensor dy,
                          const struct tensor *weights, struct layer_saved *saved, struct arena *arena)
{
    layer_check(context, dx);
    layer_check(context, dy);
    ASSERT(dx.data != dy.data);
    for (int i = LAYER_BLOCKS - 1; i >= 0; i--) {
        struct tensor in = i == 0 ? dx : layer_slice_alloc(context, context->model->dim, arena);
        struct layer_context own = block_context(context, i);
        layer_kinds[saved->blocks.kind[i]].backward_input(&own, in, dy, weights + saved->blocks.weights_at[i], saved->block[i], arena);
        dy = in;
    }
}

void layer_backward_weight(const struct layer_context *context, struct tensor *gradients,
                           struct layer_saved *saved)
{
    for (int i = LAYER_BLOCKS - 1; i >= 0; i--) {
        struct layer_context own = block_context(context, i);
        layer_kinds[saved->blocks.kind[i]].backward_weight(&own, gradients + saved->blocks.weights_at[i], saved->block[i]);
    }
}

double layer_recompute_flops(const struct model_config *model, const struct recompute *recompute, int layer, int64_t tokens)
{
    unsigned parts = recompute_within(recompute), of_layer = model_layer_has_experts(model, layer) ? RECOMPUTE_MOE_MLA_QKV : RECOMPUTE_DENSE_MLA_QKV;
    double flops = recompute->mode == RECOMPUTE_FULL ? layer_forward_flops(model, layer, tokens) : 0;
    if (parts & RECOMPUTE_ATTENTION_CORE) flops += attention_flops(model, tokens, (int64_t)model->heads * model->head_dim);
    if (model->attention == ATTENTION_MLA && parts & of_layer) flops += mla_attention_up_flops(model, tokens);
    return flops;
}

double layer_forward_flops(const struct model_config *model, int layer, int64_t tokens)
{
    double flops = 0;
    struct layer_blocks blocks = layer_blocks(model, layer);
    for (int i = 0; i < LAYER_BLOCKS; i++)
        flops += layer_kinds[blocks.kind[i]].forward_flops(model, tokens);
    return flops;
}
