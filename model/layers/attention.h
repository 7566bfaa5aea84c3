/* attention: see attention.c. */
#ifndef MODEL_LAYERS_ATTENTION_H
#define MODEL_LAYERS_ATTENTION_H

#include "model/layers/layers.h"

struct attention {
    int heads, kv_heads;            /* that this rank computes */
    struct tensor q, k, v;          /* [T, heads * D], [T, kv_heads * D] twice; the caller fills them before RoPE */
    struct tensor out, lse;         /* [T, heads * D], [batch, heads, seq] */
    struct tensor viewed;           /* out as the output projection reads it; out itself in a healthy run */
    void *context_saved;            /* what context parallelism keeps for the backward */
};

/* What the head counts follow from; q, k, v are allocated for the caller to fill. */
void attention_open(const struct layer_context *context, struct attention *attention, int64_t q_width, int64_t kv_width,
                    struct arena *arena);
/* Turns q and k (model.rope) and rounds them: q, k, v as attention reads them. */
void attention_turn(const struct layer_context *context, struct attention *attention);
/* Fills out, lse and viewed from them; in a recomputation alike. */
void attention_core(const struct layer_context *context, struct attention *attention, struct arena *arena);
/* d_viewed is overwritten by the gradient of out; dq, dk, dv as q, k, v, before RoPE and rounded. */
void attention_backward(const struct layer_context *context, const struct attention *attention, struct tensor d_viewed,
                        struct tensor dq, struct tensor dk, struct tensor dv);
/* Scores and the weighted sum of values: 2 x 2 S D a query and head. The causal mask is not taken off, as is the
 * convention when people report model FLOPs. */
double attention_flops(const struct model_config *model, int64_t tokens, int64_t q_width);

/* mla_attention.c: queries, keys and values from the latents. */
double mla_attention_up_flops(const struct model_config *model, int64_t tokens);

#endif
