/* attention_run: the workload `attention`: one attention on a machine of context-parallel groups, and nothing else.
 *
 * Inputs are global: each number is a draw at (sequence, position, head, d), rounded to what activations are kept in, so that
 * any number of ranks under any layout computes the same thing. Sequence r * batch + b is the b-th of group r of the
 * parallel.dp_replicate groups. A rank takes the rows at its positions, calls context_forward and context_backward
 * (model/context/context.h) and keeps what came out.
 *
 * The reference (attention_reference) is another program: scores of whole rows in fp64, softmax, sums, by the formulas;
 * it shares no code with the blocks' kernel or with the merges, but for the fp64 matrix product. */
#ifndef MODEL_ATTENTION_RUN_H
#define MODEL_ATTENTION_RUN_H

#include "model/train.h"

/* q, d_out [sequences, seq, heads, head_dim], k, v [sequences, seq, kv_heads, head_dim], sinks [heads] or NULL,
 * documents [sequences, seq] or NULL where the mask does not use them. */
struct attention_inputs_data {
    int64_t sequences, seq, heads, kv_heads, head_dim;
    double *q, *k, *v, *d_out, *sinks;
    int32_t *documents;
    struct arena *arena;
};
/* By the seed, rounded to config->precision. Caller owns. */
struct attention_inputs_data *attention_inputs_new(const struct run_config *config);
/* A copy that may be changed: what variations do. */
struct attention_inputs_data *attention_inputs_copy(const struct attention_inputs_data *inputs);
void attention_inputs_free(struct attention_inputs_data *inputs);   /* accepts NULL */
/* The documents again, after config->model.document_mask has changed. */
void attention_inputs_set_documents(struct attention_inputs_data *inputs, const struct run_config *config);

/* May query position p of a sequence see key position k? By the mask alone. */
bool attention_visible(const struct run_config *config, const int32_t *documents /* of the sequence, or NULL */, int64_t query, int64_t key);

/* The parallel run; the number formats are config->precision's, the inputs as they are given. Caller owns the record, whose
 * params.count is 0. NULL and an error for the environment's reasons; refusals of the method are the loader's. */
struct record *attention_run(const struct run_config *config, struct site_plan *plan, const struct train_options *options,
                             const struct attention_inputs_data *inputs, struct error *error);
/* The same on one rank, in fp64, by attention_reference. No machine, no sites. */
struct record *attention_standalone(const struct run_config *config, const struct train_options *options,
                                    const struct attention_inputs_data *inputs, struct error *error);
/* The same work on one rank: cp 1, all groups' sequences in one batch. */
struct run_config attention_single(const struct run_config *config);
/* Does the method take these sizes? false and why. */
bool attention_allowed(const struct run_config *config, char why[320]);

/* attention_reference.c: results into arrays shaped as above, lse [sequences, heads, seq]; d_* only with gradients. */
struct attention_results { double *out, *lse, *dq, *dk, *dv, *d_sinks, *dq_terms /* [sequences, seq, heads] */, *dk_terms /* [sequences, seq, kv_heads] */, *sink_terms /* [heads] */, *lse_terms /* [sequences, seq, heads]; NULL: neither this is wanted nor */, *out_logits,
    *dq_logits /* as dq_terms; from here on begun with 0; NULL: none of the four is wanted */, *dk_logits, *dv_logits, *dv_terms /* as dk_terms */; };
void attention_reference(const struct run_config *config, const struct ops *ops /* fp64 */, const struct attention_inputs_data *inputs,
                         bool gradients, struct attention_results *ret);

#endif
