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

#include "collectives/collectives.h"
#include "model/config.h"
#include "model/ops.h"
#include "model/routing.h"
#include "model/sites.h"
#include "sim/arena.h"

struct rank_record;
struct context_parallel;
struct factor_numbers;

/* ---- parameters: the list of each unit, in a fixed order ----
 * A layer's are those of its blocks, one block after the other (model/layers.def); a block numbers its own from 0. */
enum { PARAM_NONE = -1 };
enum param_cut { CUT_NONE, CUT_ROWS, CUT_COLUMNS }; /* replicated; column-parallel (its outputs are split); row-parallel (its inputs are) */
struct param_info {
    char name[64];
    int dims;                       /* 1 or 2 */
    int64_t shape[2];               /* [out, in]; vectors [width] */
    bool is_bias, is_norm, is_embedding, is_adapter, is_router;
    bool is_head_norm;              /* of each head alone, one weight for all heads (model.qk_norm) */
    bool is_expert; int expert;     /* of a routed expert: which */
    bool writes_residual;           /* a matrix whose output is added to the residual stream */
    int64_t fan_in;                 /* of a bias: its matrix' */
    enum param_cut cut;             /* how tensor parallelism splits it */
    int sections;                   /* of CUT_ROWS: the rows are this many equal parts, each of which is split (0: one) */
    int of_matrix;                  /* of a bias: its matrix' index within the block; PARAM_NONE else */
    int through_softmax;            /* its gradient comes through attention's softmax: the index of the values' matrix; PARAM_NONE else */
};
int layer_params_count(const struct model_config *model, int layer);
void layer_params(const struct model_config *model, int layer, struct param_info *ret /* [layer_params_count] */);
/* layers.N.adapter.weight [adapter_rows, dim] (adapter.c), a layer's last. false: there is none. */
bool layer_adapter(const struct model_config *model, int layer, struct param_info *ret);

/* What the forward leaves for the backward; memory from `arena`, alive until backward_weight is done. */
struct layer_saved;

/* The ranks that share each layer's matrices between them; NULL where there is one. */
struct tensor_parallel { struct communicator *communicator; struct group *group; };
/* The ranks that have slices of the same sequences: over tp (sequence parallelism), cp, or both, tp innermost. */
struct token_slices {
    struct communicator *communicator; struct group *group;
    int64_t seq;                          /* of a whole sequence */
    const int64_t *rows;                  /* [members]: of each sequence */
    const int32_t *const *positions;      /* [members]: [batch * rows] */
};
/* A rank's room for the map that all_gather sends: of the last use `rows` entries. */
struct dispatch_map { double *entries; int64_t rows, room; };
/* The ranks that share each layer's experts between them; NULL in a layer_context: each has all. Member i of `group` holds
 * experts i * count .. (i + 1) * count - 1; those of others have no weights here (data NULL). */
struct expert_parallel {
    struct communicator *communicator;
    struct group *group;                  /* ep, in the order of experts */
    struct group *inner, *outer;          /* all-to-all in two steps; NULL: in one over group */
    struct group *tensor;                 /* etp: whose members share each expert's matrices; NULL: they are whole */
    struct group *copies;                 /* tp ranks that hold the same tokens and are in one ep group: each dispatches its part of them; NULL: none */
    enum moe_dispatcher dispatcher;
    bool over_tp;                         /* group spans tp ranks */
    int first, count;                     /* experts of this rank */
    struct dispatch_map *map;             /* NULL: every use has its own */
    /* Backward. What rides with a gradient to the experts that it goes to, where it becomes a part of theirs: the sender's
     * probes and ledger (model/unit.h), and the sum of what arrived, this rank's own included. NULL: nobody looks. */
    const void *probes; size_t probe_count; struct ledger *ledger; /* probes, ledger NULL: this rank sends zeros, nothing */
    void *arrived_probes; struct ledger *arrived_ledger, *middle_ledger /* in two steps: room */;
};
/* Dropout of what a block adds to the residual stream: see layers/dropout.c. */
enum dropout_place { DROPOUT_ATTENTION, DROPOUT_FEED_FORWARD, DROPOUT_PLACES };
/* What one sequence's mask was drawn from: counters first .. first + count - 1 of a stream; kept: a digest of the mask. */
struct draw { int layer; enum dropout_place place; int64_t sequence; uint64_t stream, first, count, kept; };
struct dropout_streams {
    uint64_t seed;
    int step;
    int64_t first_sequence, of_rank_0;    /* within the step, of the first row; of data rank 0's at the same place */
    int64_t sequences;                    /* of the step */
    int advanced;                         /* 0: streams begin where they begin; n: the n-th draw of the same name */
    void (*note)(void *owner, const struct draw *draw); void *owner; /* what a forward draws; NULL: nobody looks */
};

struct layer_context {                    /* what is the same for all layers of a micro-batch */
    const struct model_config *model;
    int layer;                            /* of the layer that runs */
    const struct ops *ops;
    const struct precision *precision;    /* what results are rounded to */
    int64_t batch, seq;
    int sequence_chunks;                  /* of the head: train.sequence_chunks; 0, 1: one */
    const int32_t *positions;             /* [T] */
    const int32_t *documents;             /* [T], or NULL where the mask does not use them */
    /* Context parallelism: batch, seq, positions and documents are of the rows that this rank has; attention meets the others. */
    const struct context_parallel *cp;    /* NULL: all rows are here */
    int64_t whole_seq;                    /* of the sequences; with cp alone */
    const int32_t *whole_documents;       /* [batch, whole_seq] */
    const int32_t *turn_positions;        /* [T]: as RoPE takes them; NULL: positions */
    const struct tensor_parallel *tp;
    unsigned tensor_whole;                /* of enum tensor_part: computed whole on every tp rank, as if there were one */
    const struct expert_parallel *ep;
    bool sequence_split;                  /* between tensor-parallel parts each tp rank has its run of every sequence's positions */
    bool is_slice;                        /* of a block that sees its slice alone (layers/moe.c) */
    const struct token_slices *tokens;    /* of a router: who has the other tokens of its sequences; NULL: all are here */
    struct arena *scratch;                /* released before return */
    struct dropout_streams dropout;
    unsigned recompute;                   /* of enum recompute_part: what is not kept for the backward */
    bool ties_to_last;                    /* the router's choice among equal scores; due: the first */
    struct site_plan *plan;               /* NULL in a healthy run */
    struct where where;
    struct rank_record *record;           /* where decisions are noted; NULL: nowhere */
    bool watch;                           /* of train_options: sums over tp are noted there too */
    /* Where the values inside a block are looked at: rows of [T, width] at a site; part: which of the site's several
     * tensors. NULL: nobody looks. */
    void (*note)(void *owner, const struct site *site, int part, struct tensor rows); void *note_owner;
    const struct factor_numbers *numbers; /* of the run, for factors; may be NULL */
    const struct router_run *router;      /* of the layer that runs (model/routing.h); may be NULL */
};

/* weights, gradients: the layer's tensors in the order of layer_params.
 * y = layer(x); x, y [T, C]. y may not be x; x must stay alive for the backward. With sequence_split x, y, dx and dy, of layers,
 * embedding and head, are slices: [T / tp, C] (layers/sequence_parallel.h). */
struct layer_saved *layer_forward(const struct layer_context *context, struct tensor y, struct tensor x,
                                  const struct tensor *weights, struct arena *arena);
/* dx [T, C] from dy [T, C]; dy must stay alive until backward_weight. */
void layer_backward_input(const struct layer_context *context, struct tensor dx, struct tensor dy,
                          const struct tensor *weights, struct layer_saved *saved, struct arena *arena);
void layer_backward_weight(const struct layer_context *context, struct tensor *gradients /* += */, struct layer_saved *saved);

/* embedding: y [T, C] = the rows of weight [vocab, C] that tokens [T] name; with tp, weight is this rank's part of the rows. */
void embedding_forward(const struct layer_context *context, struct tensor y, const int32_t *tokens, struct tensor weight);
void embedding_backward(const struct layer_context *context, struct tensor dweight /* += */, const int32_t *tokens, struct tensor dy);

/* head: norm, output projection, cross-entropy per token. */
struct head_weights { struct tensor norm, output; };
struct head_saved;
struct head_saved *head_forward(const struct layer_context *context, struct tensor token_loss /* [T] */, struct tensor x,
                                const int32_t *targets, const struct head_weights *weights, struct arena *arena);
/* weight [T]: the cotangent of each token's loss (0 for ignored ones). */
/* [T, vocabulary, or this rank's part of it], as the losses are made from them; until head_backward_input. Of chunks: the last one's. */
struct tensor head_logits(const struct head_saved *saved);
void head_backward_input(const struct layer_context *context, struct tensor dx, struct tensor weight, const int32_t *targets,
                         const struct head_weights *weights, struct head_saved *saved, struct arena *arena);
void head_backward_weight(const struct layer_context *context, struct head_weights *gradients /* += */, struct head_saved *saved);

/* Floating-point operations of one layer's forward on `tokens` rows, for the virtual clock (backward: twice). */
double layer_forward_flops(const struct model_config *model, int layer, int64_t tokens);
/* Those that its recomputation adds to a backward. Norms, activations and copies are not counted, as above. */
double layer_recompute_flops(const struct model_config *model, const struct recompute *recompute, int layer, int64_t tokens);

/* Initial values of one parameter, full shape, by seed and name, as model.initial says (config.h; gpt2: what writes
 * into the residual stream divided by sqrt(2*layers)), ones for norms. The same bits in fp32 and, widened, fp64: drawn
 * in fp64, rounded to fp32. */
void param_initial(const struct param_info *info, const struct model_config *model, uint64_t seed, struct tensor ret_values);

#endif
