/* adapter: a matrix W of few rows beside each layer, which not every forward uses (model.adapter_used): what
 * find_unused_parameters is for.
 *
 *   forward    y[t] = layer(x)[t] + W[t mod rows]       t: position in the sequence; of the sequences that use it, rounded to the residual stream
 *   backward   dW[t mod rows] += dy[t], t ascending;  dx is the layer's
 * Which sequences do is a matter of the loss cut's data ranks and micro-batches, in the standalone run too. Where none
 * does, dW keeps its zeros. */
#include "model/loss_convention.h"
#include "model/precision.h"
#include "model/program.h"

static bool is_used(const struct program *p, const struct microbatch *mb, int sequence)
{
    const struct run_config *config = p->run->config;
    int cell = loss_cut_batch(config, mb->first_sequence + sequence), microbatches = loss_cut_of(config).microbatches;
    return model_uses_adapter(&config->model, cell / microbatches, cell % microbatches);
}

/* The rows of one sequence. */
static struct tensor rows_of(struct tensor t, int64_t sequence, int64_t seq)
{
    int64_t dim = t.shape[1];
    return tensor_2d(element_at(t.data, (size_t)(sequence * seq * dim), t.storage), t.storage, seq, dim);
}

void adapter_forward(struct program *p, const struct microbatch *mb, const struct unit *unit, struct tensor y)
{
    const struct model_config *model = &p->run->config->model;
    enum format storage = p->run->ops->storage;
    size_t dim = (size_t)model->dim;
    if (model->adapter_rows == 0) return;
    struct tensor w = unit_param_tensor(unit, unit->count - 1, storage);
    for (int i = 0; i < layout_sequences_per_microbatch(p->run->config); i++) {
        if (!is_used(p, mb, i)) continue;
        struct tensor rows = rows_of(y, i, program_slice_seq(p));
        const int32_t *positions = mb->slice_positions + i * program_slice_seq(p);
        for (int64_t t = 0; t < rows.shape[0]; t++) {
            char *row = element_at(rows.data, (size_t)t * dim, storage);
            p->run->ops->vector_add(row, row, element_at(w.data, (size_t)(positions[t] % model->adapter_rows) * dim, storage), dim);
        }
        tensor_round(rows, p->run->config->precision.residual);
    }
}

void adapter_backward(struct program *p, const struct microbatch *mb, const struct unit *unit, struct tensor dy)
{
    const struct model_config *model = &p->run->config->model;
    if (model->adapter_rows == 0) return;
    struct arena_mark mark = arena_mark(mb->arena);
    int64_t seq = program_slice_seq(p);
    int32_t *of_position = arena_alloc(mb->arena, (size_t)(seq + 1) * sizeof *of_position);
    for (int i = 0; i < layout_sequences_per_microbatch(p->run->config); i++) {
        for (int64_t t = 0; t < seq; t++) of_position[t] = mb->slice_positions[i * seq + t] % model->adapter_rows;
        if (is_used(p, mb, i))
            p->run->ops->embedding_backward(unit_grad_tensor(unit, unit->count - 1, p->run->ops->storage), of_position, rows_of(dy, i, seq));
    }
    arena_release(mb->arena, mark);
}
