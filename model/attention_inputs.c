/* attention_inputs: what the workload `attention` is given, number by number, from the seed.
 *
 *   stream "attention.q" and so on, draw ((sequence * seq + position) * heads + head) * head_dim + d
 *   normal        N(0, 1)                      uniform  U[0, 1)
 *   adversarial   N(0, 1); keys at positions of the second quarter of a sequence times 3, those of the third plus 1: the
 *                 logits of one block of keys are spread, those of another moved, so that merges must weigh blocks. With
 *                 U[0, 1) or long sequences of N(0, 1) all blocks weigh alike and wrong weights hide.
 *   large         adversarial, with queries times 32: logits beyond 88, whose exponential is no number of fp32
 * Rounded to what activations are kept in (precision.compute). The documents of sequence b are the scenario's, beginning
 * with the (b mod n)-th of the n lengths. */
#include "model/attention_run.h"

#include <string.h>

#include "model/precision.h"
#include "sim/assertion.h"
#include "sim/random.h"

static double draw(const struct random_stream *stream, enum attention_inputs inputs, uint64_t index)
{
    return inputs == ATTENTION_UNIFORM ? random_unit_at(stream, index) : random_normal_at(stream, index);
}

static double *drawn(const struct run_config *config, const char *name, enum format format, int64_t count, struct arena *arena)
{
    struct random_stream stream = random_stream(config->seed, name);
    double *values = arena_alloc(arena, (size_t)(count + 1) * sizeof *values);
    for (int64_t i = 0; i < count; i++) values[i] = format_round(format, draw(&stream, config->attention.inputs, (uint64_t)i));
    return values;
}

static void spread_keys(struct attention_inputs_data *in, enum format format)
{
    int64_t width = in->kv_heads * in->head_dim;
    for (int64_t i = 0; i < in->sequences * in->seq; i++) {
        int64_t quarter = 4 * (i % in->seq) / in->seq;
        for (int64_t j = 0; j < width; j++) {
            double *value = &in->k[i * width + j];
            if (quarter == 1) *value = format_round(format, 3 * *value);
            if (quarter == 2) *value = format_round(format, *value + 1);
        }
    }
}

void attention_inputs_set_documents(struct attention_inputs_data *in, const struct run_config *config)
{
    const struct attention_config *a = &config->attention;
    in->documents = NULL;
    if (!config->model.document_mask) return;
    in->documents = arena_zalloc(in->arena, (size_t)(in->sequences * in->seq + 1) * sizeof *in->documents);
    for (int64_t b = 0; b < in->sequences && a->documents_count > 0; b++) {
        int64_t at = 0;
        for (int i = 0; i < a->documents_count; i++) {
            int length = a->documents[(b + i) % a->documents_count];
            for (int64_t end = at + length; at < end && at < in->seq; at++) in->documents[b * in->seq + at] = i;
        }
    }
}

struct attention_inputs_data *attention_inputs_new(const struct run_config *config)
{
    struct arena *arena = arena_new("attention inputs", false);
    struct attention_inputs_data *in = arena_zalloc(arena, sizeof *in);
    enum format format = precision_activation(&config->precision);
    const struct model_config *m = &config->model;
    *in = (struct attention_inputs_data){.sequences = (int64_t)config->layout.dp_replicate * config->attention.batch, .seq = m->seq,
        .heads = m->heads, .kv_heads = m->kv_heads, .head_dim = m->head_dim, .arena = arena};
    int64_t rows = in->sequences * in->seq, wide = rows * in->heads * in->head_dim, narrow = rows * in->kv_heads * in->head_dim;
    in->q = drawn(config, "attention.q", format, wide, arena);
    in->k = drawn(config, "attention.k", format, narrow, arena);
    in->v = drawn(config, "attention.v", format, narrow, arena);
    in->d_out = drawn(config, "attention.d_out", format, wide, arena);
    if (config->attention.sinks) in->sinks = drawn(config, "attention.sinks", format, in->heads, arena);
    if (config->attention.inputs >= ATTENTION_ADVERSARIAL) spread_keys(in, format);
    for (int64_t i = 0; i < wide && config->attention.inputs == ATTENTION_LARGE; i++) in->q[i] *= 32; /* exact in every format */
    attention_inputs_set_documents(in, config);
    return in;
}

static void *copy_of(struct arena *arena, const void *from, size_t bytes)
{
    if (!from) return NULL;
    void *to = arena_alloc(arena, bytes + 1);
    memcpy(to, from, bytes);
    return to;
}

struct attention_inputs_data *attention_inputs_copy(const struct attention_inputs_data *from)
{
    struct arena *arena = arena_new("attention inputs", false);
    struct attention_inputs_data *in = arena_zalloc(arena, sizeof *in);
    size_t rows = (size_t)(from->sequences * from->seq), of_head = (size_t)from->head_dim * sizeof(double);
    *in = *from;
    in->arena = arena;
    in->q = copy_of(arena, from->q, rows * (size_t)from->heads * of_head);
    in->k = copy_of(arena, from->k, rows * (size_t)from->kv_heads * of_head);
    in->v = copy_of(arena, from->v, rows * (size_t)from->kv_heads * of_head);
    in->d_out = copy_of(arena, from->d_out, rows * (size_t)from->heads * of_head);
    in->sinks = copy_of(arena, from->sinks, (size_t)from->heads * sizeof(double));
    in->documents = copy_of(arena, from->documents, rows * sizeof *from->documents);
    return in;
}

void attention_inputs_free(struct attention_inputs_data *inputs)
{
    if (inputs) arena_free(inputs->arena);
}
