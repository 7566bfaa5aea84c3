/* estimate: sums of the large arrays of model/ (unit.c, stage.c, finish.c), for the parallel and the standalone run.
 *
 *   state        weights, gathered weights, gradients and moments of all ranks; initial values
 *   history      what the records keep: gradients and weights of every step, probes, sketches
 *   activations  of the micro-batches in flight on all ranks
 *   data         tokens, and losses and weights a token
 *   ranks        stacks and arenas
 * Good to a factor of about two: it is there to refuse what can't fit. */
#include "scenarios/estimate.h"

#include "model/record.h"
#include "sim/format.h"

static double parameter_count(const struct model_config *m)
{
    double dim = m->dim, q = (double)m->heads * m->head_dim, kv = (double)m->kv_heads * m->head_dim;
    double attention = 2 * dim * q + 2 * dim * kv, layers = 0;
    if (m->attention == ATTENTION_MLA) {
        double q_rank = m->mla.q_lora_rank, kv_rank = m->mla.kv_lora_rank;
        attention = (q_rank > 0 ? q_rank * (dim + q) : dim * q) + kv_rank * (dim + 2 * q) + dim * q;
    }
    for (int l = 0; l < m->layers; l++) {
        double feed_forward = 3 * dim * m->ffn;
        if (model_layer_has_experts(m, l)) feed_forward = m->moe.experts * (dim + 3 * dim * m->moe.expert_ffn) + 3 * dim * m->moe.shared_ffn;
        layers += 2 * dim + attention + feed_forward + (double)m->adapter_rows * dim;
        if (m->qk_norm) layers += 2.0 * m->head_dim;
        if (m->bias) layers += q + 2 * kv + 2 * dim + 2.0 * m->ffn; /* biases are few, whatever the layer */
    }
    return layers + dim + (m->tie_embeddings ? 1 : 2) * (double)m->vocab * dim;
}

/* Those that expert parallelism spreads. */
static double expert_parameter_count(const struct model_config *m)
{
    double count = 0;
    for (int l = 0; l < m->layers; l++) count += model_layer_has_experts(m, l) ? 3.0 * m->moe.experts * m->dim * m->moe.expert_ffn : 0;
    return count;
}

/* Stored elements a token and layer between forward and backward; copies: tp ranks that each have the residual stream whole. */
static double layer_activation(const struct model_config *m, double copies)
{
    double experts = m->moe.experts > 0 ? m->moe.top_k * (4.0 * m->dim + 5.0 * m->moe.expert_ffn) + 4.0 * m->moe.shared_ffn + 3.0 * m->moe.experts : 0;
    return copies * 8.0 * m->dim + 3.0 * m->head_dim * (m->heads + 2.0 * m->kv_heads) + 4.0 * m->ffn + m->heads + experts;
}

static void add_run(const struct run_config *config, const struct layout *layout, struct estimate *ret)
{
    const struct model_config *m = &config->model;
    double width = (double)format_storage_bytes(run_storage(config)), count = ret->parameters, steps = config->train.steps;
    double data_ranks = (double)layout->dp_replicate * layout_shards(layout), microbatches = layout->microbatches, units = m->layers + 2.0;
    double tokens = (double)config->train.global_batch * m->seq, tokens_here = tokens / (layout_data_ranks(layout) * microbatches);
    double copies = layout->zero == ZERO_3 ? layout->dp_replicate : data_ranks;
    double in_flight = layout->pp < layout->microbatches ? layout->pp : microbatches;
    if (layout->schedule[0] == 'G') in_flight = microbatches; /* GPipe keeps all */
    double spread = expert_parameter_count(m), ep = layout_ep(layout);
    const struct { double count, ranks, copies; } shares[] = {
        {count - spread, data_ranks, copies}, {spread, data_ranks / ep, layout->zero == ZERO_3 ? copies : copies / ep}};
    for (int i = 0; i < 2; i++) {
        ret->state += width * shares[i].count * (1 + (layout->zero == ZERO_3 ? 2 * shares[i].ranks + 5 * shares[i].copies : 6 * shares[i].ranks));
        ret->history += width * shares[i].count * shares[i].copies * (2 * steps + 1);
    }
    ret->history += steps * units * data_ranks * (64 * data_ranks * microbatches + 256 * microbatches);
    ret->history += steps * units * config->train.global_batch * 3 * 96;
    bool again = layout->recompute.mode == RECOMPUTE_FULL;
    double copies_of_stream = layout_slices_sequences(layout) ? 1 : layout->tp;
    double kept = again ? 2.0 * m->dim * copies_of_stream : layer_activation(m, copies_of_stream); /* input and its gradient; one layer whole, once a stage */
    if (m->dropout > 0) ret->history += steps * m->layers * config->train.global_batch * 2 * (again ? 2 : 1) * (double)sizeof(struct draw_fact);
    ret->activations +=
        width * data_ranks * tokens_here * (in_flight * m->layers * kept + (again ? layout->pp * layer_activation(m, copies_of_stream) : 0) + 3.0 * m->vocab);
    ret->data += tokens * steps * (12 + 16);
    ret->ranks += 512e3 * layout_ranks(layout);
}

struct estimate estimate_run(const struct run_config *config)
{
    struct estimate estimate = {.parameters = parameter_count(&config->model)};
    struct layout standalone = layout_standalone(&config->model);
    add_run(config, &config->layout, &estimate);
    add_run(config, &standalone, &estimate);
    return estimate;
}

double estimate_total_bytes(const struct estimate *estimate)
{
    return estimate->state + estimate->history + estimate->activations + estimate->data + estimate->ranks;
}
