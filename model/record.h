/* record: what one run did, and all that comparison, checks and diagnosis may read of it.
 *
 * Written by the ranks, each into its own part; read after the run. Facts are what the program really
 * used (the factor that multiplied, the version that was gathered, the numbers that arrived), noted
 * after its sites were passed. Nothing here says whether a fault was injected. */
#ifndef MODEL_RECORD_H
#define MODEL_RECORD_H

#include "collectives/communicator.h"
#include "model/config.h"
#include "model/transformer.h"
#include "sim/ledger.h"
#include "sim/machine.h"

/* Units are what FSDP shards together: 0 = embedding, 1..layers = layers, layers+1 = head (norm, output). Activations are
 * looked at where they end. With expert parallelism the experts of layer l are a unit of their own, layers+2+l: it has
 * gradients and parameters, and ends where its layer does. */
static inline int unit_count(const struct model_config *m) { return m->layers + 2; }
static inline int gradient_unit_count(const struct run_config *c) { return c->model.layers + 2 + (layout_ep(&c->layout) > 1 ? c->model.layers : 0); }
static inline int unit_of_experts(const struct model_config *m, int layer) { return m->layers + 2 + layer; }
static inline bool unit_is_experts(const struct model_config *m, int unit) { return unit >= m->layers + 2; }
/* The layer that a unit is, or whose experts it is; -1: the embedding, the head. */
static inline int unit_layer_of(const struct model_config *m, int unit)
{
    if (unit_is_experts(m, unit)) return unit - m->layers - 2;
    return unit >= 1 && unit <= m->layers ? unit - 1 : -1;
}
/* The unit whose activations are this one's. */
static inline int unit_boundary(const struct model_config *m, int unit) { return unit_is_experts(m, unit) ? unit_layer_of(m, unit) + 1 : unit; }

/* One parameter of the model, in dataflow order. Tied: output.weight is absent; the head uses parameter 0. */
struct param { struct param_info info; int unit /* in a parallel run's record: as its layout has it */; int64_t rows, columns; /* columns 1 for vectors; rows is what FSDP shards */ };
struct param_table { int count; struct param *params; };

/* Which sequences a micro-batch really held, as the rank read them. Recorded on first and last stage. */
struct sample_fact { int step, microbatch, first_sequence /* due */; int count; const int64_t *sequences /* drawn [count], ids within the whole data */; uint64_t token_hash, target_hash;
                     int rows; const int32_t *positions; /* [count * rows] of each sequence that the rank has; NULL: all, from 0 */ };

/* Loss of one micro-batch; last stage only. The weights due: model/loss_convention.h. */
struct loss_fact {
    int step, microbatch;
    int64_t valid, unshifted, positions;   /* targets not ignored; tokens that are not padding; all positions (batch*seq) */
    double loss_sum;                       /* S: sum of the valid tokens' losses, fp64, ascending */
    double denominator, scale, compensation, repeats; /* what was used: seed = compensation * scale * repeats / denominator */
    int logit_bits; int64_t logit_values;  /* significant bits of the logits (model/precision.h), and how many are not 0, of the first ones */
    double seed;                           /* the number that multiplied every valid token's gradient; of several micro-batches of the cut in one: the first's */
    double backward_loss;                  /* sum of tokens' losses * weights: the scalar that backward was called on */
    double logged;                         /* what S was multiplied by in the printed loss; of the first alike */
    int64_t token_count;                   /* batch*seq; with cp those that the rank has */
    const double *token_loss;              /* [token_count], sequence by sequence; 0 where ignored */
    const double *token_weight;            /* [token_count]: cotangent really used */
    const int32_t *token_positions;        /* [token_count]: of each in its sequence; NULL: all of them, from 0 */
};
/* Token counts this data rank saw when it made its denominator; last stage. */
struct count_fact { int step; int64_t valid_local, unshifted_local, positions_local; double valid_global; /* after loss.token_count_reduce */ };

/* Sketch of one sequence's activation (or its gradient) at a boundary of units. */
enum sketch_kind {
    SKETCH_FORWARD_OUT,   /* unit's output */
    SKETCH_FORWARD_IN,    /* unit's input, where it came from another stage */
    SKETCH_BACKWARD_OUT,  /* gradient of the unit's input (not for the embedding) */
    SKETCH_BACKWARD_IN,   /* gradient of the unit's output, where it came from another stage */
};
/* Values at a site inside a unit's forward, or at its end (layer.forward), of one sequence; with train_options.look.
 * part: which of the site's several tensors; row: a checksum of each position's bits. */
struct rows_fact { int step, sequence, unit, part, cp, tp /* who has it */; const struct site *site; const uint64_t *row; /* [count] */ int first, count; const int32_t *positions; /* [count]: NULL: first, first + 1, ...: all, or a slice of them */ double value[5]; /* vector_sketch */ const void *values; /* [count, width] of the run's storage; with train_options.keep, of layer.forward; else NULL */ };
static inline int rows_fact_position(const struct rows_fact *fact, int i) { return fact->positions ? fact->positions[i] : fact->first + i; }
/* Where a tp or cp rank has a slice of the sequence, its sketch with zeros elsewhere: those of all add up to the sequence's. */
struct sketch_fact { int step, microbatch, sequence /* global index within the step, as due */, unit; enum sketch_kind kind; double value[5]; /* vector_sketch */ bool finite; };

/* Parameter versions a unit computed with: the step whose weights each shard carried (due: all = step). */
struct version_fact { int step, microbatch, unit; bool backward; int version_min, version_max; int shard_min /* member that carried version_min */;
                      int shards /* that are in there, as whole as they were */, shards_due /* members that own some of the unit; 1 where not sharded */;
                      uint64_t digest /* version_digest of the gathered values, parameter by parameter; 0 where not gathered anew */; };

/* A gradient on its way. In GRADIENT_LOCAL the ledger's rank is the data rank, part the use (0; 1 for the tied head). */
enum gradient_stage {
    GRADIENT_LOCAL,       /* unsharded accumulator as it goes into the reduction */
    GRADIENT_UNREDUCED,   /* what never went into a reduction by the end of the step, if anything */
    GRADIENT_SCATTERED,   /* HSDP: what the reduce-scatter gave, before the sum over replicas: ledger alone */
    GRADIENT_REDUCED,     /* what the optimizer is given, after divisor, flush and tied reduction; raw, before clipping */
};
struct gradient_fact {
    int step, microbatch /* -1 for REDUCED */, unit; enum gradient_stage stage;
    struct ledger ledger;                  /* multiplicities and scales by origin */
    /* REDUCED only: weights measured on the numbers themselves: probes that went through the same additions,
     * reductions and divisions as the gradient. probe[(step parity * D + data rank) * M + micro-batch]. */
    int pieces, probe_count; const double *probe; /* [pieces * probe_count]: a unit that buckets cut has a set of probes a piece */
    int call_layer;                        /* LOCAL only: `layer` of the reduction's call; a bucket has that of the unit that completed it */
    double sketch[5];                      /* LOCAL only: vector_sketch of each of the unit's parameters, added up: linear in the gradient */
    double slice_sketch[5];                /* LOCAL only: of those among them that saw a slice (parallel.sequence_parallel) or their own heads (model.qk_norm), which are summed over tp too */
    bool finite;
};
/* A factor that multiplied or divided a gradient. */
struct factor_fact { const struct site *site; int step, microbatch, unit; double value; int during /* the step in which it did */; int piece /* fsdp.grad_divisor, noted for each piece of a unit that buckets cut */; };
/* A sequence's dropout mask: counters first .. first + count - 1 of a stream; kept: a digest of the mask that was applied. */
struct draw_fact { int step, microbatch, sequence /* within the step, as due */, unit, place; bool again /* in a recomputation */; uint64_t stream, first, count, kept; };
/* A layer that was computed again: checksums of its output, then and now. */
struct recompute_fact { int step, microbatch, unit; uint64_t output, again; };
/* Was this unit reduced after this micro-batch? asked: as fsdp.sync_now had it, before dp.sync_now. */
struct sync_fact { int step, microbatch, unit; bool synced, asked; };
/* A decision as it was taken (count), each time; the range of a memory that was used: from, count of whole elements. */
struct choice_fact { const struct site *site; int step, microbatch, unit; int64_t from, count, whole; };
struct norm_fact { int step; double local /* of what this rank owns, each element once: its squares, or (inf) its largest magnitude */, norm, coefficient; double counted /* what its squares were multiplied by */; int members /* of the group that the sum was meant for */; };
/* One gradient reduction, as its call was given it and as it gave it back: sketches, linear but for the last value. The
 * second ones (hsdp.replicate_reduce, tied.grad_reduce) reduce a unit once a step: microbatch -1, bucket is the unit. */
struct reduction_fact { const struct site *site; int step, microbatch, bucket; int parts; const double *sent /* [parts * 5]: what goes to each member; one where all get the same */; double received[5]; int bits; int64_t values /* significant bits of what came out (model/precision.h) */; };
/* One sum over tensor-parallel ranks, in the order in which a rank makes them: what it gave and what it got, as sketches;
 * with train_options.watch. With sequence parallelism gathers too, and each has a slice of what was given or got: its sketch
 * is that of the whole with zeros elsewhere. scattered: what was got is such a slice. microbatch -1: at the end of a step. */
struct sum_fact { const struct site *site; int step, microbatch, unit; bool scattered; double sent[5], received[5]; };
/* train.check_finite: what a rank says of its input to a reduction, and whether that was finite. */
struct finite_fact { int step, microbatch, unit /* of the bucket's first piece */; bool said, was; };
/* Loss scaling: what the loss was multiplied by, whether a gradient that is not finite was found, here and anywhere,
 * whether the update was left out, and the scale of the next step. */
struct scale_fact { int step; double scale, unscaled_by; bool found_here, found, skipped; double next; double largest /* of the reduced gradient here, unscaled */; };
struct report_fact { int step; double logged, scale /* what the reduced loss was multiplied by */; double contributed, averaged /* into and out of loss.report_reduce */; };
struct update_fact { int step, unit, param; int64_t elements /* of this rank's shard */; int updates; int version /* after */; double weight_decay /* it was updated with */; };

/* A run of elements of one parameter: what a rank owns of it. */
enum tensor_kind { TENSOR_GRADIENT /* raw, reduced */, TENSOR_PARAM /* after the update; step -1: initial */ };
struct tensor_fact {
    int step, param /* index into param_table */, unit /* where it lives: differs from the param's own for the tied copy */; enum tensor_kind kind;
    int part;                              /* the tp rank whose part of the parameter it is of; 0 where it is whole on all */
    int64_t first, elements;               /* of the parameter, or of that part, row-major; elements may be 0: an empty shard */
    int replica;                           /* 0: the copy whose data the comparison puts together */
    const void *data;                      /* [elements], storage of the run */
    uint64_t digest[2];
    double terms_norm;                     /* GRADIENT: || sum of |terms| || estimate for what is zero in exact arithmetic; 0 if not known */
};
/* What a context-parallel member's attention consumed, by the ledgers that move with the numbers. times[c]: how often member c's
 * block of keys and values is in this member's output; backward: in its dq, and gradient_times[c]: how often member c's queries
 * are in its own dk and dv. others: what is there of another step, micro-batch or layer. One fact for all sequences of a micro-batch. */
struct consumption_fact { int step, microbatch, unit; bool backward; int size, me; const int32_t *times, *gradient_times /* [size]; NULL forward */; int32_t others; };
/* Workload attention: what one rank made of its rows, [batch, rows, heads, head_dim] and so on, as fp64 (exact for every storage). */
struct attention_part {
    int64_t batch, rows;                   /* batch: its group's sequences, the first of them number first_sequence of all */
    int64_t first_sequence;
    const int32_t *positions;              /* [batch, rows]: of the rows it holds */
    const double *out, *lse /* [batch, heads, rows] */, *dq, *dk, *dv /* [batch, rows, kv_heads, head_dim] */, *d_sinks /* [heads] */; /* NULL: not made */
    const double *dq_terms, *dk_terms, *dv_terms, *lse_terms; /* of the reference: [batch, rows, heads], sums of magnitudes of what they are sums of; NULL else */
    const double *out_logits, *dq_logits, *dk_logits, *dv_logits; /* of the reference: [batch, rows, heads], what large logits leave (model/attention_reference.c); NULL else */
    const double *sink_terms;              /* of the reference: [heads], the same of d_sinks; NULL else */
};
/* Workload denoise: the latents of a rank after an iteration. */
struct latent_fact { int step /* iteration */; int64_t rows /* of all sequences */; const int32_t *positions; const void *values /* [rows, dim], storage of the run */; };
/* Memory that was not meant to be read, or numbers that are not finite. */
struct poison_fact { int step, microbatch, unit; const struct site *site; const char *what; };

/* One micro-batch of the loss cut: its tokens, and the weight due of each valid one. */
struct loss_cell { int64_t valid, unshifted, positions; double weight; };

#define RECORD_VECTOR(type) struct { int count, capacity; type *items; }
struct rank_record {
    /* shard: of dp_shard x cp; data_rank = replicate * shards + shard, / ep where experts are replicated: whose tokens it has. */
    int rank, stage, data_rank, replicate, shard, cp, tp;
    bool mute;                             /* train_options.mute */
    int first_unit, units;                 /* of its stage; the tied copy on the last stage is not counted */
    RECORD_VECTOR(struct sample_fact) samples;
    RECORD_VECTOR(struct loss_fact) losses;
    RECORD_VECTOR(struct count_fact) counts;
    RECORD_VECTOR(struct sketch_fact) sketches;
    RECORD_VECTOR(struct rows_fact) rows;
    RECORD_VECTOR(struct version_fact) versions;
    RECORD_VECTOR(struct gradient_fact) gradients;
    RECORD_VECTOR(struct factor_fact) factors;
    RECORD_VECTOR(struct reduction_fact) reductions;
    RECORD_VECTOR(struct sum_fact) sums;
    RECORD_VECTOR(struct finite_fact) finites;
    RECORD_VECTOR(struct sync_fact) syncs;
    RECORD_VECTOR(struct choice_fact) choices;
    RECORD_VECTOR(struct draw_fact) draws;
    RECORD_VECTOR(struct recompute_fact) recomputations;
    RECORD_VECTOR(struct norm_fact) norms;
    RECORD_VECTOR(struct scale_fact) scales;
    RECORD_VECTOR(struct report_fact) reports;
    RECORD_VECTOR(struct update_fact) updates;
    RECORD_VECTOR(struct tensor_fact) tensors;
    RECORD_VECTOR(struct poison_fact) poisons;
    RECORD_VECTOR(struct consumption_fact) consumptions;
    RECORD_VECTOR(struct routing_fact) routings;
    RECORD_VECTOR(struct balance_fact) balances;
    const struct attention_part *attention; /* workload attention; NULL else, and where the rank did not come to its end */
    RECORD_VECTOR(struct latent_fact) latents; /* workload denoise */
    int64_t routing_left;                  /* numbers that routing facts may still take */
    struct communicator *communicator;     /* calls and traffic; owned by the record; NULL before the rank began */
    int unwaited;                          /* handles never waited for */
    int receives_planned;                  /* activations that its list of actions receives in a step */
    double busy_s, time_s;                 /* virtual */
    int64_t param_bytes, grad_bytes, optimizer_bytes, activation_peak_bytes, peak_bytes;
    int layers_peak;                       /* layers, of all micro-batches, of which more than the input was held at once */
    int microbatches_peak, unsharded_peak; /* micro-batches whose activations, units whose gathered parameters were held at once */
    struct arena *arena;                   /* owns all arrays above */
};

struct record {
    struct run_config config;              /* with layout and format of this run (data.text borrowed) */
    struct param_table params;
    struct mesh mesh;
    int ranks;
    struct rank_record *rank;              /* [ranks] */
    enum machine_outcome outcome;
    struct deadlock deadlock;              /* deep copy; blocked_count 0 unless it deadlocked */
    int unreceived; char unreceived_text[256];
    const char *cpu_path, *gemm, *coroutine, *openblas_core;
    double wall_s, cpu_s;                  /* of the run alone; for `performance` only */
    uint64_t digest[2];                    /* losses, gradients, parameters, communication */
    const bool *frozen;                    /* [params] */
    int steps_due; const int64_t *valid_due;              /* [steps]: see record_valid_tokens_due */
    const struct loss_cell *cells;         /* [steps, data ranks, micro-batches] of the loss cut, from the data */
    const uint16_t *members;               /* [steps, sequences, seq]: which member of the cut's cp has the position; NULL: there is one */
    struct machine *machine;               /* kept for the texts it owns */
    struct arena *arena;
};
void record_free(struct record *record);   /* accepts NULL */

struct param_table param_table_new(const struct model_config *model, struct arena *arena);

/* A parameter's values into a running digest (0 at first), by their vector_checksum. */
uint64_t version_digest(uint64_t digest, uint64_t checksum);

/* ---- what follows from the layout alone ---- */
/* The parameters as a run splits them: experts' may be units of their own (ep), and cut over tp (etp). */
struct param_table param_table_of_run(const struct run_config *config, struct arena *arena);
/* Has this rank the unit, or some of it; the parameter? */
bool record_has_unit(const struct record *record, const struct rank_record *rank, int unit);
bool record_has_param(const struct record *record, const struct rank_record *rank, int param);
int layout_stage_of_unit(const struct layout *layout, const struct model_config *model, int unit);
int layout_sequences_per_microbatch(const struct run_config *config);
/* The first sequence of a data rank's micro-batch, within the step. */
int layout_first_sequence(const struct run_config *config, int data_rank, int microbatch);
/* All-data-ranks count of valid tokens of a step, from the data (not from the run). */
int64_t record_valid_tokens_due(const struct record *record, int step);

#endif
