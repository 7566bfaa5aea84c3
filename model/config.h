/* config: what a training run is made of, as validated data. The loader (scenarios/) fills it; every
 * field is in range and all that must divide divides when a run starts. */
#ifndef MODEL_CONFIG_H
#define MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>
#include "sim/format.h"

struct model_config {
    int layers, dim, heads, kv_heads, head_dim, ffn, vocab, seq;
    bool causal, rope, bias, tie_embeddings, document_mask;
    double norm_eps, rope_base;             /* 1e-5, 10000 */
    char weights[1024];                     /* safetensors file with initial values; "" = by seed and name */
};

enum packing { PACKING_DOCUMENTS, PACKING_STREAM };
struct data_config {
    const uint8_t *text; int64_t text_bytes; /* owned by the scenario */
    enum packing packing;
};

enum optimizer_kind { OPTIMIZER_SGD, OPTIMIZER_ADAMW };
struct train_config {
    int steps, global_batch;
    enum optimizer_kind optimizer;
    double lr, beta1, beta2, eps, weight_decay, momentum;
    double grad_clip;                       /* 0: none */
    int loss_normalization;                 /* of loss_conventions.def; 0: token_mean */
};

enum schedule_kind_limits { SCHEDULE_NAME_MAX = 32, STAGES_MAX = 256 };
enum zero_stage { ZERO_0 = 0, ZERO_3 = 3 };
enum sync_mode { SYNC_LAST_MICROBATCH, SYNC_EACH_MICROBATCH };
enum fsdp_reduce { FSDP_REDUCE_AVG, FSDP_REDUCE_SUM };
struct layout {
    int pp, dp_replicate, dp_shard;         /* the other axes are 1 for now and refused otherwise */
    int microbatches;
    char schedule[SCHEDULE_NAME_MAX];       /* "GPipe", "1F1B" */
    bool send_sync;
    int layers_per_stage[STAGES_MAX];       /* [pp], sums to layers */
    int zero;                               /* 0 or 3 */
    bool reshard_after_forward;
    enum fsdp_reduce reduce_op;
    enum sync_mode sync;
    char all_reduce[32], all_gather[32], reduce_scatter[32]; /* algorithms; "" = default */
};

/* Whose micro-batches' weights a run applies: the parallel layout's, in its standalone run too. 0: the layout's own. */
struct loss_cut { int data_ranks, microbatches; };

struct machine_config { int ranks_per_node; double tflops, intra_latency_us, intra_gb_per_s, inter_latency_us, inter_gb_per_s; };

struct run_config {
    uint64_t seed;
    struct model_config model;
    struct data_config data;
    struct train_config train;
    struct layout layout;
    struct loss_cut loss_cut;
    struct machine_config machine;
    enum format format;                     /* storage and arithmetic of the whole run: fp64 or fp32 */
};

static inline int layout_data_ranks(const struct layout *l) { return l->dp_replicate * l->dp_shard; }
static inline int layout_ranks(const struct layout *l) { return l->pp * layout_data_ranks(l); }
/* The same work on one rank: pp 1, dp 1, one micro-batch, zero 0. */
struct layout layout_standalone(const struct model_config *model);

#endif
