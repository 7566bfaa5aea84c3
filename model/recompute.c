/* recompute: a layer of which only its input is kept (recompute full), and how much is held at once.
 *
 * After the forward all that the layer left is given back, but for its input, which is the output of the unit before. When
 * its backward comes, and with zero 3 after the parameters are gathered for it, the forward runs again from that input:
 * the same arithmetic on the same bits, dropout's streams begun where the forward began them, the router's ties broken
 * alike. So its output has the bits that the forward's had, which is noted and checked.
 *
 * Real systems: torch.utils.checkpoint, which saves and restores the generators' states (preserve_rng_state); Megatron-LM's
 * CheckpointFunction, which does so for its tracker of states too. */
#include "model/balance.h"
#include "model/choices.h"
#include "model/program.h"
#include "model/vectors.h"

void recompute_note_held(struct program *p)
{
    int64_t used = 0;
    int layers = 0;
    for (int m = 0; m < p->run->config->layout.microbatches; m++) {
        const struct microbatch *mb = &p->microbatches[m];
        if (!mb->arena) continue;
        used += (int64_t)arena_used(mb->arena);
        for (int i = 0; mb->layers && i < p->units_count; i++) layers += mb->layers[i] != NULL;
    }
    if (used > p->activation_bytes) p->activation_bytes = used;
    if (layers > p->record->layers_peak) p->record->layers_peak = layers;
}

void recompute_note_draw(void *owner, const struct draw *draw)
{
    struct program *p = owner;
    struct draw_fact fact = {.step = p->step, .microbatch = p->drawing.microbatch, .unit = draw->layer + 1, .place = (int)draw->place,
        .sequence = (int)draw->sequence, .again = p->drawing.again, .stream = draw->stream, .first = draw->first, .count = draw->count, .kept = draw->kept};
    record_push(p->record, draws, fact);
}

static uint64_t output_digest(const struct program *p, struct tensor y)
{
    return p->run->ops->vector_checksum(y.data, (size_t)tensor_count(y));
}

void recompute_forward_done(struct program *p, struct microbatch *mb, int i, struct tensor x, struct tensor y, struct arena_mark before)
{
    recompute_note_held(p);
    if (p->run->config->layout.recompute.mode != RECOMPUTE_FULL) return;
    arena_release(mb->arena, before);
    mb->layers[i] = NULL;
    mb->kept[i] = (struct kept_layer){x, output_digest(p, y)};
}

/* The kept input; what a fault does to it stays what the backward reads. */
static struct tensor kept_input(struct program *p, const struct layer_context *context, struct microbatch *mb, int i)
{
    struct tensor x = mb->kept[i].input;
    if (!p->run->plan) return x;
    struct tensor read = x;
    read.data = memcpy(arena_alloc(mb->arena, (size_t)tensor_bytes(x)), x.data, (size_t)tensor_bytes(x));
    tensor_site(p->run->plan, &site_recompute_input, context->where, read);
    return read;
}

void recompute_layer(struct program *p, int microbatch, int i, const struct layer_context *layer, const struct tensor *weights)
{
    struct microbatch *mb = &p->microbatches[microbatch];
    struct layer_context context = *layer;
    struct site_plan *plan = p->run->plan;
    int unit = p->units[i].index;
    const struct model_config *model = context.model;
    if (p->run->config->layout.recompute.mode != RECOMPUTE_FULL) return;
    if (model->dropout > 0) context.dropout.advanced = !choice_site(plan, p->record, &site_recompute_restore_rng, context.where, unit, true);
    if (model_layer_has_experts(model, context.layer))
        context.ties_to_last = !choice_site(plan, p->record, &site_recompute_reselect, context.where, unit, true);
    struct tensor x = kept_input(p, &context, mb, i), y = x;
    y.data = arena_alloc(p->scratch, (size_t)tensor_bytes(x));
    struct router_run router; /* what the forward noted stands */
    if (context.router) {
        router = *context.router;
        router.fact = NULL;
        router.counts = balance_counted_again(p, &p->units[i], context.where);
        context.router = &router;
    }
    p->drawing.again = true;
    mb->layers[i] = layer_forward(&context, y, x, weights, mb->arena);
    p->drawing.again = false;
    struct recompute_fact fact = {p->step, microbatch, unit, mb->kept[i].output, output_digest(p, y)};
    record_push(p->record, recomputations, fact);
}
