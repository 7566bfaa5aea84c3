/* transformer: the GPT's parts, each forward, backward to the input, backward to the weights.
 *
 * B sequences of S tokens, T = B*S rows, C = dim. A linear layer is y[T,out] = x[T,in] W[out,in]^T (+ b).
 * Backward is split as zero-bubble schedules need it: *_backward_input gives dx and leaves in `saved`
 * what *_backward_weight needs; the latter only adds to weight gradients.
 * Names of parameters (torchtitan's): tok_embeddings.weight; layers.N.attention_norm.weight,
 * layers.N.attention.{wq,wk,wv,wo}.{weight,bias}, layers.N.ffn_norm.weight,
 * layers.N.feed_forward.{w1,w2,w3}.{weight,bias} (w1 gate, w3 up, w2 down); norm.weight; output.weight
 * (tok_embeddings.weight again where tied). */
#ifndef MODEL_TRANSFORMER_H
#define MODEL_TRANSFORMER_H

#include "model/config.h"
#include "model/ops.h"
#include "sim/arena.h"

/* ---- parameters: the list of each unit, in a fixed order ---- */
struct param_info { char name[64]; int dims; int64_t shape[2]; bool is_bias; bool is_norm; bool is_adapter; };
enum { LAYER_PARAMS_MAX = 16 };
enum layer_param { LAYER_ATTENTION_NORM, LAYER_WQ, LAYER_WK, LAYER_WV, LAYER_WO, LAYER_FFN_NORM, LAYER_W1, LAYER_W2, LAYER_W3,
                   LAYER_BQ, LAYER_BK, LAYER_BV, LAYER_BO, LAYER_B1, LAYER_B2, LAYER_B3 }; /* biases only where model.bias */
int layer_params(const struct model_config *model, int layer, struct param_info ret[LAYER_PARAMS_MAX]); /* 9 or 16 */
/* layers.N.adapter.weight [adapter_rows, dim] (adapter.c), a layer's last. false: there is none. */
enum { UNIT_PARAMS_MAX = LAYER_PARAMS_MAX + 1 };
bool layer_adapter(const struct model_config *model, int layer, struct param_info *ret);

/* Weights and gradients of one layer: tensors at the indices above. */
struct layer_weights { struct tensor at[LAYER_PARAMS_MAX]; };

/* What the forward leaves for the backward; memory from `arena`, alive until backward_weight is done. */
struct layer_saved;

struct layer_context {                    /* what is the same for all layers of a micro-batch */
    const struct model_config *model;
    const struct ops *ops;
    const struct precision *precision;    /* what results are rounded to */
    int64_t batch, seq;
    const int32_t *positions;             /* [T] */
    const int32_t *documents;             /* [T], or NULL where the mask does not use them */
    struct arena *scratch;                /* released before return */
};

/* y = layer(x); x, y [T, C]. y may not be x; x must stay alive for the backward. */
struct layer_saved *layer_forward(const struct layer_context *context, struct tensor y, struct tensor x,
                                  const struct layer_weights *weights, struct arena *arena);
/* dx [T, C] from dy [T, C]; dy must stay alive until backward_weight. */
void layer_backward_input(const struct layer_context *context, struct tensor dx, struct tensor dy,
                          const struct layer_weights *weights, struct layer_saved *saved, struct arena *arena);
void layer_backward_weight(const struct layer_context *context, struct layer_weights *gradients /* += */, struct layer_saved *saved);

/* head: norm, output projection, cross-entropy per token. */
struct head_weights { struct tensor norm, output; };
struct head_saved;
struct head_saved *head_forward(const struct layer_context *context, struct tensor token_loss /* [T] */, struct tensor x,
                                const int32_t *targets, const struct head_weights *weights, struct arena *arena);
/* weight [T]: the cotangent of each token's loss (0 for ignored ones). */
void head_backward_input(const struct layer_context *context, struct tensor dx, struct tensor weight, const int32_t *targets,
                         const struct head_weights *weights, struct head_saved *saved, struct arena *arena);
void head_backward_weight(const struct layer_context *context, struct head_weights *gradients /* += */, struct head_saved *saved);

/* Floating-point operations of one layer's forward on `tokens` rows, for the virtual clock (backward: twice). */
double layer_forward_flops(const struct model_config *model, int64_t tokens);

/* Initial values of one parameter, full shape, by seed and name: N(0, 0.02^2) for embeddings and matrices
 * (wo and w2 divided by sqrt(2*layers)), ones for norms, zeros for biases. The same bits in fp32 and, widened, fp64:
 * drawn in fp64, rounded to fp32. */
void param_initial(const struct param_info *info, const struct model_config *model, uint64_t seed, struct tensor ret_values);

#endif
