/* layers: the table of residual blocks that a transformer layer is made of, one line each in
 * model/layers.def, and the few helpers that they share.
 *
 * All blocks have one signature, that of layer_forward and its two backwards (model/transformer.h):
 * x, y, dx, dy are [T, C], the pointer that forward returns goes to both backwards, what it points
 * to lives in the arena that was given, temporaries live in context->scratch and are gone on return. */
#ifndef MODEL_LAYERS_LAYERS_H
#define MODEL_LAYERS_LAYERS_H

#include "model/transformer.h"

struct layer_kind {
    const char *name;
    int (*params)(const struct model_config *model, int layer, struct param_info *ret); /* how many; ret NULL: only that */
    void *(*forward)(const struct layer_context *context, struct tensor y, struct tensor x,
                     const struct tensor *weights, struct arena *arena);
    void (*backward_input)(const struct layer_context *context, struct tensor dx, struct tensor dy,
                           const struct tensor *weights, void *saved, struct arena *arena);
    void (*backward_weight)(const struct layer_context *context, struct tensor *gradients, void *saved);
    double (*forward_flops)(const struct model_config *model, int64_t tokens);
};

enum layer_kind_index {
#define LAYER(name) LAYER_KIND_##name,
#include "model/layers.def"
#undef LAYER
    LAYER_KIND_COUNT
};
extern const struct layer_kind layer_kinds[LAYER_KIND_COUNT];

#define LAYER(name)                                                                                           \
    int name##_params(const struct model_config *model, int layer, struct param_info *ret);                   \
    void *name##_forward(const struct layer_context *context, struct tensor y, struct tensor x,               \
                         const struct tensor *weights, struct arena *arena);                           \
    void name##_backward_input(const struct layer_context *context, struct tensor dx, struct tensor dy,       \
                               const struct tensor *weights, void *saved, struct arena *arena);        \
    void name##_backward_weight(const struct layer_context *context, struct tensor *gradients,         \
                                void *saved);                                                                 \
    double name##_forward_flops(const struct model_config *model, int64_t tokens);
#include "model/layers.def"
#undef LAYER

/* The blocks of a layer in forward order; weights_at[i]: where in the layer's parameters block i's begin. */
enum { LAYER_BLOCKS = 2 };
struct layer_blocks { enum layer_kind_index kind[LAYER_BLOCKS]; int weights_at[LAYER_BLOCKS + 1]; };
struct layer_blocks layer_blocks(const struct model_config *model, int layer);

/* The context of a part of the model: without tp ranks where tensor parallelism leaves it whole. */
static inline struct layer_context layer_part_context(const struct layer_context *context, enum tensor_part part)
{
    struct layer_context own = *context;
    if (context->tensor_whole & part) own.tp = NULL;
    return own;
}

/* Values inside a block pass a tensor site, and are looked at. */
void layer_tensor(const struct layer_context *context, const struct site *site, int part, struct tensor rows);
void layer_note(const struct layer_context *context, const struct site *site, int part, struct tensor rows);

/* A decision that always falls out as due, noted for the checks. unit: 0 the embedding, 1 .. layers, layers + 1 the head. */
bool layer_choice(const struct layer_context *context, const struct site *site, int unit, bool due);

static inline int64_t layer_rows(const struct layer_context *context) { return context->batch * context->seq; }

/* What this rank has of them between tensor-parallel parts: all, or its slice of each sequence (sequence_parallel.h). */
static inline int64_t layer_slice_seq(const struct layer_context *context)
{
    return context->sequence_split ? context->seq / context->tp->group->size : context->seq;
}

static inline int64_t layer_slice_rows(const struct layer_context *context) { return context->batch * layer_slice_seq(context); }

/* The position that it begins with. */
static inline int64_t layer_slice_first(const struct layer_context *context)
{
    return context->sequence_split ? layer_slice_seq(context) * context->tp->group->me : 0;
}

/* An uninitialised [T] or [T, columns] of the run's storage. */
static inline struct tensor layer_vector_alloc(const struct layer_context *context, int64_t count, struct arena *arena)
{
    enum format storage = context->ops->storage;
    return tensor_1d(arena_alloc(arena, (size_t)count * format_storage_bytes(storage)), storage, count);
}

static inline struct tensor layer_matrix_alloc(const struct layer_context *context, int64_t columns,
                                               struct arena *arena)
{
    enum format storage = context->ops->storage;
    int64_t rows = layer_rows(context);
    return tensor_2d(arena_alloc(arena, (size_t)(rows * columns) * format_storage_bytes(storage)), storage, rows,
                     columns);
}

/* An uninitialised slice. */
static inline struct tensor layer_slice_alloc(const struct layer_context *context, int64_t columns, struct arena *arena)
{
    enum format storage = context->ops->storage;
    int64_t rows = layer_slice_rows(context);
    return tensor_2d(arena_alloc(arena, (size_t)(rows * columns) * format_storage_bytes(storage)), storage, rows, columns);
}

/* Where a forward puts what this part of the recomputation drops: it is gone on return where it will be made again. */
static inline struct arena *layer_keeps(const struct layer_context *context, unsigned part, struct arena *arena)
{
    return context->recompute & part ? context->scratch : arena;
}

/* The bias, or a tensor without data where the model has none (the array is not looked at then). */
static inline struct tensor layer_bias(const struct layer_context *context, const struct tensor *weights, int bias)
{
    return context->model->bias ? weights[bias] : (struct tensor){ .data = NULL };
}

#endif
