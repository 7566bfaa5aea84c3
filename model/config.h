/* config: what a training run is made of, as validated data. The loader (scenarios/) fills it; every
 * field is in range and all that must divide divides when a run starts. */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include "sim/format.h"

enum attention_kind { ATTENTION_MHA, ATTENTION_MLA };
/* gpt2: N(0, 0.02^2), smaller where a matrix writes into the residual stream, biases 0. pytorch: what torch.nn.Linear
 * and torch.nn.Embedding begin with: U(-1/sqrt(in), 1/sqrt(in)) for matrices and biases, N(0, 1) for embeddings. */
enum initial_kind { INITIAL_GPT2, INITIAL_PYTORCH };
struct mla_config { int q_lora_rank, kv_lora_rank; }; /* q_lora_rank 0: queries straight from the input */

enum moe_score { MOE_SCORE_SIGMOID, MOE_SCORE_SOFTMAX };
/* How the chosen scores become weights: softmax over them, divided by their sum, or as they are. */
enum moe_normalize { MOE_NORMALIZE_SOFTMAX, MOE_NORMALIZE_SUM, MOE_NORMALIZE_NONE };
/* noaux_tc: a bias on the scores, for the choice alone, moved against each step's counts (DeepSeek-V3). */
enum moe_balance { MOE_BALANCE_NONE, MOE_BALANCE_NOAUX_TC };
/* Whom an expert without room keeps: those with the largest weights, or the first. */
enum moe_drop { MOE_DROP_PROBS, MOE_DROP_POSITION };
enum { LAYERS_MAX = 1024 };
struct moe_config {
    int experts, top_k, expert_ffn, shared_ffn; /* experts 0: every layer is dense; shared_ffn 0: no shared expert */
    uint8_t dense[LAYERS_MAX / 8];          /* layers without experts, a bit each */
    enum moe_score score;
    enum moe_normalize normalize;
    double routed_scaling;
    bool scores_bf16;                       /* scores are rounded to bf16 before the choice: they tie */
    int groups, groups_chosen;              /* experts only from the best groups_chosen of so many groups; groups 0 or 1: from all */
    double aux_loss_coeff, z_loss_coeff;
    enum moe_balance balance;
    double bias_update_rate;
    double capacity_factor;                 /* 0: no limit */
    enum moe_drop drop;
    bool normalize_after_drop;              /* DeepSpeed; else before (Megatron-LM, Tutel) */
    int row_alignment;                      /* an expert's rows are padded with zeros to a multiple, where products over rows read them; 0 or 1: not */
};

/* Who uses the adapters: nobody, or the micro-batches of data rank 0, or micro-batch 0 of each data rank. */
enum adapter_used { ADAPTER_NEVER, ADAPTER_FIRST_DATA_RANK, ADAPTER_FIRST_MICROBATCH };
struct model_config {
    int layers, dim, heads, kv_heads, head_dim, ffn, vocab, seq;
    enum attention_kind attention;
    enum initial_kind initial;
    struct mla_config mla;
    struct moe_config moe;
    bool causal, rope, bias, tie_embeddings, document_mask;
    bool qk_norm;                           /* RMS norm of each head's query and key */
    double norm_eps, rope_base;             /* 1e-5, 10000 */
    int window;                             /* a query sees keys less than this many positions away; 0: all */
    double dropout;                         /* of what attention and feed-forward add to the residual stream; 0: none */
    int adapter_rows;                       /* of a matrix beside each layer that not every forward uses; 0: there is none */
    enum adapter_used adapter_used;
    char weights[1024];                     /* safetensors file with initial values; "" = by seed and name */
};

static inline bool model_layer_has_experts(const struct model_config *model, int layer)
{
    return model->moe.experts > 0 && !(model->moe.dense[layer / 8] >> (layer % 8) & 1);
}

static inline bool model_uses_adapter(const struct model_config *m, int data_rank, int microbatch)
{
    if (m->adapter_rows == 0 || m->adapter_used == ADAPTER_NEVER) return false;
    return m->adapter_used == ADAPTER_FIRST_DATA_RANK ? data_rank == 0 : microbatch == 0;
}

enum packing { PACKING_DOCUMENTS, PACKING_STREAM };
struct data_config {
    const uint8_t *text; int64_t text_bytes; /* owned by the scenario */
    enum packing packing;
};

/* Number formats by part (the scenario's `precision`). Numbers are kept in one storage, fp32 or fp64; a narrower
 * format is what a part rounds its results to:
 *   param       the parameters that forward and backward read, and what an all-gather of them carries
 *   compute     operands and results of matrix products, activations between them and their gradients; products add
 *               up in the storage, as a matrix unit does. fp8: the operands alone are rounded, each row by a power
 *               of two of its own (row-wise scaling), in the forward and in the gradient to the input; the weight's
 *               gradient stays wider, and so do activations (bf16)
 *   residual    the residual stream and its gradient
 *   softmax     attention's scores, probabilities and output
 *   logits      logits and their gradient
 *   accumulate  a weight's gradient over micro-batches, unsharded and after its reduction
 *   reduce      gradients on their way through a reduction, after each addition
 *   master      what the optimizer updates; its moments have the storage's format */
struct precision { enum format param, compute, reduce, accumulate, softmax, logits, residual, master; };
enum { PRECISION_PARTS = 8 };
static inline enum format precision_part(const struct precision *p, int i)
{
    const enum format parts[PRECISION_PARTS] = {p->param, p->compute, p->reduce, p->accumulate, p->softmax, p->logits, p->residual, p->master};
    return parts[i];
}
static inline struct precision precision_of(enum format f) { return (struct precision){f, f, f, f, f, f, f, f}; }
static inline bool precision_is(const struct precision *p, enum format format)
{
    for (int i = 0; i < PRECISION_PARTS; i++) {
        if (precision_part(p, i) != format) return false;
    }
    return true;
}
static inline enum format precision_storage(const struct precision *p)
{
    for (int i = 0; i < PRECISION_PARTS; i++) {
        if (precision_part(p, i) == FORMAT_FP64) return FORMAT_FP64;
    }
    return FORMAT_FP32;
}
/* The coarsest rounding that a number may meet. */
static inline double precision_roundoff(const struct precision *p)
{
    double largest = 0;
    for (int i = 0; i < PRECISION_PARTS; i++) {
        double u = format_traits[precision_part(p, i)].unit_roundoff;
        if (u > largest) largest = u;
    }
    return largest;
}
/* All parts fp32 or fp64: no store rounds to less than the storage. */
static inline bool precision_is_plain(const struct precision *p)
{
    return precision_is(p, FORMAT_FP32) || precision_is(p, FORMAT_FP64);
}

/* Dynamic loss scaling as torch.amp.GradScaler: the loss is multiplied before backward, the reduced gradient
 * divided; where anything in it is not finite on any rank, the update is left out and the scale multiplied by
 * backoff; after `interval` updates in a row it is multiplied by growth. */
enum loss_scaling { LOSS_SCALING_NONE, LOSS_SCALING_STATIC, LOSS_SCALING_DYNAMIC };
struct loss_scale_config { enum loss_scaling kind; double initial, growth, backoff; int interval; };

enum optimizer_kind { OPTIMIZER_SGD, OPTIMIZER_ADAMW };
/* The gradient's norm that is clipped: the root of the sum of squares, or the largest magnitude. */
enum grad_norm { GRAD_NORM_L2, GRAD_NORM_INF };
/* What the optimizer does with a parameter that nothing used, whose gradient is none: PyTorch's leaves it alone, under
 * DDP (pytorch #28883) and FSDP2 too; where gradients are one flat buffer that is zeroed (Megatron-LM, ZeRO), it has
 * zeros for a gradient, and weight decay acts on it. */
enum no_gradient { NO_GRADIENT_SKIP, NO_GRADIENT_ZERO };
/* Which parameters weight decay leaves out: none, or those of one dimension, norms and biases. */
enum no_decay { NO_DECAY_NONE, NO_DECAY_VECTORS };
struct train_config {
    int steps, global_batch;
    enum optimizer_kind optimizer;
    double lr, beta1, beta2, eps, weight_decay, momentum;
    double grad_clip;                       /* 0: none */
    enum grad_norm grad_norm;
    enum no_gradient no_gradient;
    enum no_decay no_decay;
    bool check_finite;                      /* each rank looks at its own gradient before it is reduced */
    char frozen[256];                       /* patterns of parameters without a gradient, by commas; * at the end: anything */
    struct loss_scale_config loss_scale;
    int gc_interval_steps, sequence_chunks; /* 0: none; parts of a sequence in the head. Neither changes a value */
    int loss_normalization;                 /* of loss_conventions.def, then the plug-in's; 0: token_mean */
};

static inline bool train_exempts_from_decay(const struct train_config *train, int dims)
{
    return train->no_decay == NO_DECAY_VECTORS && dims == 1;
}

/* What of a layer is dropped after its forward and computed again before its backward needs it. full: all but its input,
 * by running its forward again. selective: attention's output and statistics, from queries, keys and values (the core of
 * attention: Korthikanti et al. 2022). parts: single tensors, as MindSpeed and PanGu's training name them. */
enum recompute_mode { RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL };
enum recompute_part {
    RECOMPUTE_ATTENTION_CORE = 1,           /* what `selective` stands for */
    RECOMPUTE_MOE_PERMUTE = 2,              /* the tokens in the order of experts */
    RECOMPUTE_MOE_ACTIVATION = 4,           /* the experts' silu(gate) * up */
    RECOMPUTE_MOE_RMSNORM = 8,              /* the norm before the experts */
    RECOMPUTE_MOE_MLA_QKV = 16,             /* latent attention's queries, keys and values, from the latents; in layers with experts */
    RECOMPUTE_DENSE_MLA_QKV = 32,           /* in the others */
};
struct recompute { enum recompute_mode mode; unsigned parts; };
/* The parts that a layer drops within itself. */
static inline unsigned recompute_within(const struct recompute *r)
{
    if (r->mode == RECOMPUTE_FULL) return 0;
    return r->parts | (r->mode == RECOMPUTE_SELECTIVE ? RECOMPUTE_ATTENTION_CORE : 0);
}

/* What tensor parallelism splits. feed_forward: the shared expert too; vocabulary: embedding and head. */
enum tensor_part { TENSOR_ATTENTION = 1, TENSOR_FEED_FORWARD = 2, TENSOR_VOCABULARY = 4, TENSOR_PARTS = 7 };
enum schedule_kind_limits { SCHEDULE_NAME_MAX = 32, STAGES_MAX = 256 };
enum zero_stage { ZERO_0 = 0, ZERO_1 = 1, ZERO_2 = 2, ZERO_3 = 3 };
enum sync_mode { SYNC_LAST_MICROBATCH, SYNC_EACH_MICROBATCH };
enum fsdp_reduce { FSDP_REDUCE_AVG, FSDP_REDUCE_SUM };
/* How tokens reach their experts on other ranks (model/layers/dispatch.h). replicated: the ranks of an expert-parallel
 * group read the same sequences, each computes its own experts, and the results are summed. */
enum moe_dispatcher { DISPATCH_ALL_TO_ALL, DISPATCH_ALL_GATHER, DISPATCH_REPLICATED };
/* What runs beside computing. Values do not depend on it; the clock does not know it yet. */
struct overlap { int tp; /* 0: none, 1: mc2 */ bool forward_backward, all_to_all; };
/* How a sequence is split over cp ranks, and how keys and values meet queries there: names of model/context's tables. */
struct context_config {
    char method[32], layout[32], merge[32]; /* "ring", "zigzag", "sigmoid" */
    int ulysses;                            /* usp: consecutive cp ranks that split heads */
    bool tree, overlap, reversed;           /* model/context/context.h */
};
struct layout {
    int pp, dp_replicate, dp_shard, tp;
    int cp;                                 /* ranks that share each sequence; 1 (or 0): none */
    struct context_config context;
    int ep, etp;                            /* 0 or 1: every rank has all experts; none is split. etp is 1 or tp */
    bool experts_over_tp;                   /* expert-parallel groups span the tp ranks too */
    enum moe_dispatcher dispatcher;
    int ep_inner;                           /* all_to_all in two steps: members of an inner group; 0 or 1: in one */
    unsigned tensor_whole;                  /* of enum tensor_part: what tensor parallelism leaves whole on every tp rank */
    bool sequence_parallel;                 /* has a meaning with tp > 1: between tensor-parallel parts each tp rank has its run of every sequence's positions */
    int microbatches;
    char schedule[SCHEDULE_NAME_MAX];       /* "GPipe", "1F1B" */
    bool send_sync;
    int layers_per_stage[STAGES_MAX];       /* [pp], sums to layers */
    int zero;                               /* what is sharded over dp_shard x cp: 0 nothing, 1 optimizer state, 2 and gradients, 3 and parameters */
    bool reshard_after_forward;
    int bucket_elements;                    /* zero 0..2: gradients are reduced in buckets of exactly this many, cut through parameters; 0: one bucket a unit */
    int bucket_alignment;                   /* a bucket's shards are padded to a multiple of this */
    int prefetch;                           /* zero 3: units whose all-gather is started ahead */
    enum fsdp_reduce reduce_op;
    enum sync_mode sync;
    struct recompute recompute;             /* how the work is done, not what: one rank alone keeps everything */
    struct overlap overlap;
    char all_reduce[32], all_gather[32], reduce_scatter[32], all_to_all[32]; /* algorithms; "" = default */
};

/* Whose micro-batches' weights a run applies: the parallel layout's, in its standalone run too. data_ranks 0: the layout's own. */
struct loss_cut { int data_ranks, microbatches; int cp; char context_layout[32]; };

/* What runs: training; the transformer's layers again and again on their own output; one attention alone. */
enum workload { WORKLOAD_TRAIN, WORKLOAD_DENOISE, WORKLOAD_ATTENTION };
/* Inputs of the workload attention: N(0, 1), U[0, 1), or N(0, 1) with the keys of one quarter of the positions three times as
 * large and those of another moved, so that what a block weighs differs from block to block; or these with queries times 32, whose
 * logits no exponential bears. */
enum attention_inputs { ATTENTION_NORMAL, ATTENTION_UNIFORM, ATTENTION_ADVERSARIAL, ATTENTION_LARGE };
enum { DOCUMENTS_MAX = 256 };
struct attention_config {
    enum attention_inputs inputs;
    int batch;                              /* sequences of each context-parallel group */
    bool backward, sinks;
    int documents[DOCUMENTS_MAX], documents_count; /* lengths; none: one document */
    int joint; bool joint_rear;             /* rows that every member has, at the front or the end of the sequence */
};

struct machine_config { int ranks_per_node; double tflops, intra_latency_us, intra_gb_per_s, inter_latency_us, inter_gb_per_s; };

struct plugin;                              /* model/plugin/plugin.h */
struct run_config {
    const struct plugin *plugin;            /* borrowed; what it brings stands beside the tables of this run; NULL: none */
    uint64_t seed;
    struct model_config model;
    struct data_config data;
    struct train_config train;
    struct layout layout;
    struct loss_cut loss_cut;
    struct machine_config machine;
    struct precision precision;
    enum workload workload;
    struct attention_config attention;      /* workload attention */
    int iterations;                         /* workload denoise */
};
static inline enum format run_storage(const struct run_config *config) { return precision_storage(&config->precision); }

static inline int layout_ep(const struct layout *l) { return l->ep > 1 ? l->ep : 1; }
static inline int layout_cp(const struct layout *l) { return l->cp > 1 ? l->cp : 1; }
/* Ranks that share parameters between them: dp_shard x cp, row-major. */
static inline int layout_shards(const struct layout *l) { return l->dp_shard * layout_cp(l); }
/* Shards that an expert-parallel group spans. */
static inline int layout_ep_shards(const struct layout *l)
{
    int ep = layout_ep(l);
    return !l->experts_over_tp ? ep : ep > l->tp ? ep / l->tp : 1;
}
/* Shards that hold the same tokens. */
static inline int layout_shards_alike(const struct layout *l) { return l->dispatcher == DISPATCH_REPLICATED ? layout_ep(l) : 1; }
/* Data ranks: those that hold different tokens, dp_replicate x dp_shard x cp, row-major; where experts are replicated, fewer.
 * cp consecutive ones hold one data rank's sequences between them: */
static inline int layout_data_ranks(const struct layout *l) { return l->dp_replicate * layout_shards(l) / layout_shards_alike(l); }
/* ranks that read different sequences (the letter D). */
static inline int layout_sequence_ranks(const struct layout *l) { return layout_data_ranks(l) / layout_cp(l); }
/* Names of the groups that they make. */
static inline const char *layout_shard_group(const struct layout *l) { return layout_cp(l) > 1 ? "dp_shard_cp" : "dp_shard"; }
static inline const char *layout_data_group(const struct layout *l) { return layout_cp(l) > 1 ? "dp_cp" : "dp"; }
/* Of the ranks that have slices of the same sequences. */
static inline const char *layout_token_group(const struct layout *l)
{
    if (layout_cp(l) == 1) return "tp";
    return l->sequence_parallel && l->tp > 1 ? "cp_tp" : "cp";
}
static inline int layout_ranks(const struct layout *l) { return l->pp * l->dp_replicate * layout_shards(l) * l->tp; }
/* Does a tp rank have a slice of each sequence between tensor-parallel parts? */
static inline bool layout_slices_sequences(const struct layout *l) { return l->sequence_parallel && l->tp > 1; }
/* The same work on one rank: pp 1, dp 1, one micro-batch, zero 0. */
struct layout layout_standalone(const struct model_config *model);

#endif
