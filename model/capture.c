/* capture: copies of gradients and parameters for the comparison, a fact a slice. */
#include <math.h>

#include "model/program.h"
#include "sim/hash.h"

static enum format storage_of(const struct program *p)
{
    return p->run->ops->storage;
}

/* Of a parameter that has a gradient, of a frozen one's place the largest of the unit's. */
static double gradient_norm(const struct program *p, const struct unit *unit, int i)
{
    double squares = 0;
    if (unit->params[i].frozen) {
        for (int k = 0; k < unit->count; k++)
            if (!unit->params[k].frozen) squares = fmax(squares, gradient_norm(p, unit, k));
        return squares;
    }
    for (int k = 0; k < unit->slices_count; k++) {
        const struct slice *slice = &unit->slices[k];
        if (slice->i == i && slice->count > 0)
            squares += p->run->ops->vector_sum_squares(element_at(unit->reduced, slice->at, storage_of(p)), (size_t)slice->count);
    }
    return sqrt(squares);
}

/* How large the terms were whose sum a gradient is, where that sum can vanish in exact arithmetic and leave noise:
 * - A bias' gradient sums the same output gradients as its matrix' does, there each times an input of size about
 *   1 (a key bias without RoPE has no gradient at all).
 * - Queries and keys get theirs through the softmax' backward, a difference of terms of the size that the
 *   values get; where a query sees one key only, nothing is left. A loss of eight bits is taken as noise. */
static double terms_norm(const struct program *p, const struct unit *unit, int i)
{
    const struct param *params = p->run->params.params;
    const struct param_info *info = &params[unit->params[i].param].info, *matrix = info;
    if (unit_layer_of(&p->run->config->model, unit->index) < 0 || unit->params[i].adapter) return 0;
    double own = 0;
    if (info->of_matrix != PARAM_NONE) {
        matrix = &params[unit->layer_first + info->of_matrix].info;
        own = gradient_norm(p, unit, unit_find_param(unit, unit->layer_first + info->of_matrix));
    }
    if (matrix->through_softmax == PARAM_NONE) return own;
    return fmax(own, gradient_norm(p, unit, unit_find_param(unit, unit->layer_first + matrix->through_softmax)) / 256);
}

/* Which copy of an element this is: shards differ over the shard group and are copied over dp_replicate. */
static int replica_of(const struct program *p, const struct unit *unit, const struct unit_param *param)
{
    bool frozen = param->frozen;
    const struct layout *layout = &p->run->config->layout;
    int all = layout->dp_replicate * unit->groups->shard->size, at = p->record->replicate * unit->groups->shard->size + unit->groups->shard_index;
    int copies = param->info->cut == CUT_NONE ? unit->groups->tp_copy * 2 * all : 0; /* whole on several tp ranks */
    bool whole = layout->zero == ZERO_0 || (frozen && layout->zero != ZERO_3);
    return (whole ? at : p->record->replicate) + (unit->part ? all : 0) + copies;
}

static void capture(struct program *p, const struct unit *unit, int step, enum tensor_kind kind)
{
    enum format storage = storage_of(p);
    for (int k = 0; k < unit->slices_count; k++) {
        const struct slice *slice = &unit->slices[k];
        const struct unit_param *q = &unit->params[slice->i];
        if (kind == TENSOR_GRADIENT && q->frozen) continue;
        size_t bytes = (size_t)slice->count * format_storage_bytes(storage);
        void *data = arena_alloc(p->record->arena, bytes ? bytes : 1);
        if (bytes) memcpy(data, element_at(kind == TENSOR_GRADIENT ? unit->reduced : unit->master, slice->at, storage), bytes);
        struct tensor_fact fact = {.step = step, .param = q->param, .kind = kind, .first = slice->first, .elements = slice->count,
            .data = data, .unit = unit->part ? p->run->config->model.layers + 1 : unit->index, .replica = replica_of(p, unit, q),
            .part = q->info->cut == CUT_NONE ? 0 : p->record->tp};
        struct hash hash;
        hash_init(&hash);
        hash_reals(&hash, data, (size_t)slice->count, storage);
        hash_finish(&hash, fact.digest);
        if (kind == TENSOR_GRADIENT) fact.terms_norm = terms_norm(p, unit, slice->i);
        record_push(p->record, tensors, fact);
    }
}

void capture_params(struct program *p, int step)
{
    for (int i = 0; i < p->units_count; i++) capture(p, &p->units[i], step, TENSOR_PARAM);
}

void capture_gradients(struct program *p)
{
    for (int i = 0; i < p->units_count; i++) capture(p, &p->units[i], p->step, TENSOR_GRADIENT);
}
