/* stage: the forward and backward of one micro-batch through this rank's units. What it reads: stage_draw.c; what its tokens
 * weigh: stage_loss.c. */
#include "model/balance.h"
#include "model/choices.h"
#include "model/loss_convention.h"
#include "model/program.h"

#include "model/precision.h"

static enum format storage_of(const struct program *p)
{
    return p->run->ops->storage;
}

static int64_t rows_of(const struct program *p)
{
    return (int64_t)layout_sequences_per_microbatch(p->run->config) * p->seq;
}

/* Those of them that this rank has between tensor-parallel parts. */
static int64_t slice_rows(const struct program *p)
{
    return layout_sequences_per_microbatch(p->run->config) * program_slice_seq(p);
}

struct microbatch *stage_open(struct program *p, int microbatch)
{
    struct microbatch *mb = &p->microbatches[microbatch];
    if (mb->arena) return mb;
    struct ledger ledger = mb->grad_ledger;
    *mb = (struct microbatch){.grad_ledger = ledger};
    ledger_clear(&mb->grad_ledger);
    mb->arena = p->arena_pool_count ? p->arena_pool[--p->arena_pool_count] : arena_new("micro-batch", false);
    return mb;
}

void stage_close(struct program *p, int microbatch)
{
    struct microbatch *mb = &p->microbatches[microbatch];
    recompute_note_held(p);
    arena_reset(mb->arena);
    p->arena_pool[p->arena_pool_count++] = mb->arena;
    mb->arena = NULL;
}

/* [T, dim], or a slice, with room for the probes behind. */
static struct tensor gradient_buffer(struct program *p, struct microbatch *mb, void **ret_probes)
{
    int64_t rows = slice_rows(p), dim = p->run->config->model.dim;
    size_t bytes = format_storage_bytes(storage_of(p)), probes = p->units[0].probe_count;
    char *data = arena_alloc(mb->arena, ((size_t)(rows * dim) + probes) * bytes);
    *ret_probes = data + (size_t)(rows * dim) * bytes;
    return tensor_2d(data, storage_of(p), rows, dim);
}

void stage_receive_grad_buffer(struct program *p, struct microbatch *mb)
{
    mb->output_grad = gradient_buffer(p, mb, &mb->output_probes);
}

void record_sketches(struct program *p, int microbatch, int unit, enum sketch_kind kind, struct tensor activations)
{
    const struct run_config *config = p->run->config;
    int per = layout_sequences_per_microbatch(config);
    size_t rows = (size_t)program_slice_seq(p), row = (size_t)config->model.dim, all = (size_t)config->model.seq * row;
    size_t bytes = format_storage_bytes(activations.storage);
    const int32_t *positions = p->microbatches[microbatch].slice_positions;
    struct arena_mark mark = arena_mark(p->scratch);
    char *whole = rows * row < all || p->context_layout ? arena_zalloc(p->scratch, all * bytes) : NULL; /* a slice where it stands, zeros elsewhere */
    for (int i = 0; i < per; i++) {
        struct sketch_fact fact = {.step = p->step, .microbatch = microbatch, .unit = unit, .kind = kind, .finite = true};
        fact.sequence = layout_first_sequence(config, p->data_rank, microbatch) + i;
        const char *data = (const char *)activations.data + (size_t)i * rows * row * bytes;
        if (whole && i > 0) memset(whole, 0, all * bytes);
        for (size_t t = 0; whole && t < rows; t++) memcpy(whole + (size_t)positions[(size_t)i * rows + t] * row * bytes, data + t * row * bytes, row * bytes);
        p->run->ops->vector_sketch(fact.value, whole ? whole : data, all);
        fact.finite = fact.value[4] - fact.value[4] == 0;
        record_push(p->record, sketches, fact);
    }
    arena_release(p->scratch, mark);
}

void record_rows(struct program *p, int microbatch, int unit, const struct site *site, int part, struct tensor rows)
{
    const struct run_config *config = p->run->config;
    int per = layout_sequences_per_microbatch(config), seq = (int)(rows.shape[0] / per);
    size_t row_bytes = (size_t)(rows.shape[1] * format_storage_bytes(rows.storage)), row = (size_t)rows.shape[1];
    for (int i = 0; i < per; i++) {
        struct rows_fact fact = {.step = p->step, .unit = unit, .part = part, .site = site, .cp = p->record->cp, .tp = p->record->tp, .count = seq};
        const struct microbatch *mb = &p->microbatches[microbatch];
        bool sliced = seq < p->seq;
        fact.first = sliced ? seq * p->record->tp : 0;
        if (p->context_layout) fact.positions = (sliced ? mb->slice_positions : mb->positions) + (int64_t)i * seq;
        const char *data = (const char *)rows.data + (size_t)i * (size_t)seq * row_bytes;
        uint64_t *checksums = arena_alloc(p->record->arena, (size_t)seq * sizeof *checksums);
        fact.sequence = layout_first_sequence(config, p->data_rank, microbatch) + i;
        for (int t = 0; t < seq; t++) checksums[t] = p->run->ops->vector_checksum(data + (size_t)t * row_bytes, row);
        fact.row = checksums;
        p->run->ops->vector_sketch(fact.value, data, (size_t)seq * row);
        if (p->run->options->keep && site == &site_layer_forward) {
            void *values = arena_alloc(p->record->arena, (size_t)seq * row_bytes);
            fact.values = memcpy(values, data, (size_t)seq * row_bytes);
        }
        record_push(p->record, rows, fact);
    }
}

static struct layer_context layer_context(struct program *p, struct microbatch *mb)
{
    const struct run_config *config = p->run->config;
    return (struct layer_context){.model = &config->model, .ops = p->run->ops, .precision = &config->precision, .seq = p->seq,
        .batch = layout_sequences_per_microbatch(config), .sequence_chunks = config->train.sequence_chunks, .positions = mb->positions,
        .turn_positions = mb->turn_positions, .cp = p->context_layout ? &p->context_parallel : NULL, .whole_seq = config->model.seq,
        .whole_documents = mb->whole_documents, .documents = config->model.document_mask ? mb->documents : NULL, .scratch = p->scratch,
        .tp = config->layout.tp > 1 ? &p->tensor_parallel : NULL, .ep = layout_ep(&config->layout) > 1 || config->layout.etp > 1 ? &p->expert_parallel : NULL, .tensor_whole = config->layout.tensor_whole, .sequence_split = layout_slices_sequences(&config->layout), .plan = p->run->plan, .where = WHERE_NONE, .record = p->record, .watch = p->run->options->watch, .numbers = &p->numbers,
        .recompute = recompute_within(&config->layout.recompute),
        .dropout = {.seed = config->seed, .step = p->step, .first_sequence = mb->first_sequence,
                    .of_rank_0 = mb->first_sequence - layout_first_sequence(config, p->data_rank, 0),
                    .sequences = config->train.global_batch, .note = recompute_note_draw, .owner = p}};
}

/* Where values inside a layer's forward are looked at. */
struct look { struct program *p; int microbatch, unit; };

static void look_inside(void *owner, const struct site *site, int part, struct tensor rows)
{
    const struct look *look = owner;
    record_rows(look->p, look->microbatch, look->unit, site, part, rows);
}

static void enter_layer(struct program *p, struct layer_context *context, struct look *look, const struct unit *unit, int microbatch)
{
    context->layer = unit->index - 1;
    context->plan = p->run->plan;
    context->where = program_where(p, microbatch, unit->index);
    p->drawing.microbatch = microbatch;
    context->note = NULL;
    context->tokens = p->microbatches[microbatch].tokens_of.group ? &p->microbatches[microbatch].tokens_of : NULL;
    if (!look || !p->run->options->look) return;
    *look = (struct look){p, microbatch, unit->index};
    context->note = look_inside;
    context->note_owner = look;
}

/* The unit of a layer's experts, where they are apart (ep): it stands behind the layer's. */
static struct unit *experts_of(struct program *p, struct unit *unit)
{
    bool any = unit + 1 < p->units + p->units_count && unit[1].is_experts;
    return any ? unit + 1 : NULL;
}

/* A layer's parameters, or gradients, as tensors, those of its experts on other ranks without data; from the scratch arena. */
static struct tensor *weights_of(struct program *p, struct unit *unit, bool gradients)
{
    int count = layer_params_count(&p->run->config->model, unit->index - 1) + 1; /* and an adapter */
    struct tensor *weights = arena_zalloc(p->scratch, (size_t)count * sizeof *weights);
    for (struct unit *of = unit; of; of = of == unit ? experts_of(p, unit) : NULL) {
        for (int i = 0; i < of->count; i++)
            weights[of->params[i].param - unit->layer_first] = gradients ? unit_grad_tensor(of, i, storage_of(p)) : unit_param_tensor(of, i, storage_of(p));
    }
    return weights;
}

/* A deferred weight gradient that is lost: it is computed into memory that nobody reads. */
static void lose_gradients(struct program *p, const struct unit *unit, const struct unit *experts, struct tensor *gradients)
{
    for (int i = 0; i < experts->count; i++) {
        struct tensor *t = &gradients[experts->params[i].param - unit->layer_first];
        t->data = arena_zalloc(p->scratch, (size_t)tensor_bytes(*t));
    }
}

/* What rides with a micro-batch's gradient to its experts, and where what they get is put. */
static void send_contribution(struct program *p, struct microbatch *mb, struct unit *experts)
{
    struct expert_parallel *ep = &p->expert_parallel;
    size_t bytes = experts->probe_count * format_storage_bytes(storage_of(p));
    ep->probes = mb->output_probes;
    ep->probe_count = experts->probe_count;
    ep->ledger = &mb->grad_ledger;
    ep->arrived_probes = experts->arrived_probes;
    ep->arrived_ledger = &experts->arrived_ledger;
    ep->middle_ledger = &p->middle_ledger;
    memset(experts->arrived_probes, 0, bytes);
    ledger_clear(&experts->arrived_ledger);
}

/* Unshards a unit for use, and starts the all-gathers of those that compute next: `by` +1 in a forward, -1 in a
 * backward. */
static void unshard(struct program *p, struct unit *unit, struct where where, bool backward)
{
    int ahead = p->run->config->layout.prefetch, by = backward ? -1 : 1, i = (int)(unit - p->units);
    unit_unshard_start(unit, &p->context, where);
    for (int k = i + by; k >= 0 && k < p->units_count && ahead > 0; k += by, ahead--) {
        bool computes = !backward || p->units[k].index > 0; /* the embedding's backward reads no parameter */
        if (computes) unit_unshard_start(&p->units[k], &p->context, program_where(p, where.microbatch, p->units[k].index));
    }
    unit_unshard(unit, &p->context, where, backward);
    int held = 0;
    for (int k = 0; k < p->units_count; k++) held += p->units[k].unsharded || p->units[k].gathering;
    if (held > p->record->unsharded_peak) p->record->unsharded_peak = held;
}

/* The unit whose parameter 0 the head multiplies with: the embedding where tied, else the head's own second. */
static struct unit *output_unit(struct program *p, int *ret_param)
{
    if (!p->run->config->model.tie_embeddings) {
        *ret_param = 1;
        return program_unit(p, unit_count(&p->run->config->model) - 1, 0);
    }
    *ret_param = 0;
    return program_unit(p, 0, p->tied_apart ? 1 : 0);
}

static void advance(struct program *p, double flops)
{
    rank_advance(p->rank, flops / (p->run->config->machine.tflops * 1e12));
}

static double head_flops(const struct program *p)
{
    const struct model_config *model = &p->run->config->model;
    return 2.0 * (double)rows_of(p) * model->dim * model->vocab;
}

enum { LOGITS_LOOKED_AT = 1024 }; /* of which the significant bits are noted */

static void head_run_forward(struct program *p, int microbatch, struct microbatch *mb, struct tensor x)
{
    int output_param, head_index = unit_count(&p->run->config->model) - 1;
    struct unit *head = program_unit(p, head_index, 0), *output = output_unit(p, &output_param);
    struct where where = program_where(p, microbatch, head_index);
    unshard(p, head, where, false);
    if (output != head) unit_unshard(output, &p->context, program_where(p, microbatch, output->index), false);
    struct head_weights weights = {unit_param_tensor(head, 0, storage_of(p)), unit_param_tensor(output, output_param, storage_of(p))};
    struct layer_context context = layer_context(p, mb);
    context.where = where;
    struct precision uncast = p->run->config->precision;
    uncast.logits = FORMAT_BF16;
    if (!choice_site(p->run->plan, p->record, &site_fsdp_output_cast, where, head_index, true)) context.precision = &uncast;
    int64_t rows = rows_of(p);
    mb->token_loss = tensor_1d(arena_alloc(mb->arena, (size_t)rows * format_storage_bytes(storage_of(p))), storage_of(p), rows);
    mb->head = head_forward(&context, mb->token_loss, x, mb->targets, &weights, mb->arena);
    struct tensor logits = head_logits(mb->head);
    int64_t values;
    size_t looked_at = (size_t)tensor_count(logits) < LOGITS_LOOKED_AT ? (size_t)tensor_count(logits) : LOGITS_LOOKED_AT;
    int bits = vector_bits(logits.data, looked_at, logits.storage, &values);
    recompute_note_held(p);
    tensor_site(p->run->plan, &site_layer_forward, where, mb->token_loss);
    advance(p, head_flops(p));
    stage_note_loss(p, microbatch, mb);
    struct loss_fact *fact = &p->record->losses.items[p->record->losses.count - 1];
    fact->logit_bits = bits;
    fact->logit_values = values;
}

/* Is a unit's parameters' place given free after its forward? */
static bool reshards(struct program *p, const struct unit *unit, int microbatch)
{
    bool due = p->run->config->layout.reshard_after_forward;
    return due && choice_site(p->run->plan, p->record, &site_fsdp_reshard, program_where(p, microbatch, unit->index), unit->index, true);
}

static void reshard_after_forward(struct program *p, int microbatch)
{
    for (int i = 0; i < p->units_count; i++) {
        if (p->units[i].unsharded && reshards(p, &p->units[i], microbatch)) unit_reshard(&p->units[i], storage_of(p));
    }
}

void stage_forward(struct program *p, int microbatch)
{
    const struct model_config *model = &p->run->config->model;
    struct microbatch *mb = stage_open(p, microbatch);
    struct layer_context context = layer_context(p, mb);
    struct look look;
    struct tensor x = mb->input;
    mb->layers = arena_zalloc(mb->arena, (size_t)p->units_count * sizeof *mb->layers);
    mb->kept = arena_zalloc(mb->arena, (size_t)p->units_count * sizeof *mb->kept);
    int held = 0;
    for (int m = 0; m < p->run->config->layout.microbatches; m++) held += p->microbatches[m].arena && p->microbatches[m].layers;
    if (held > p->record->microbatches_peak) p->record->microbatches_peak = held;
    if (!p->is_first) record_sketches(p, microbatch, p->record->first_unit, SKETCH_FORWARD_IN, x);
    if (!p->is_first && p->run->options->look) record_rows(p, microbatch, p->record->first_unit, &site_pp_stage_input, 0, x);
    for (int i = 0; i < p->units_count; i++) {
        struct unit *unit = &p->units[i];
        if (unit->part || unit->is_experts || unit->index == model->layers + 1) continue;
        struct where where = program_where(p, microbatch, unit->index);
        struct unit *experts = experts_of(p, unit);
        unshard(p, unit, where, false);
        if (experts) unshard(p, experts, where, false);
        struct tensor y = tensor_2d(arena_alloc(mb->arena, (size_t)(slice_rows(p) * model->dim) * format_storage_bytes(storage_of(p))),
                                    storage_of(p), slice_rows(p), model->dim);
        if (unit->index == 0) {
            context.where = where;
            embedding_forward(&context, y, mb->tokens, unit_param_tensor(unit, 0, storage_of(p)));
        } else {
            context.router = balance_enter(p, mb, unit, microbatch, false);
            struct arena_mark mark = arena_mark(p->scratch), before = arena_mark(mb->arena);
            enter_layer(p, &context, &look, unit, microbatch);
            mb->layers[i] = layer_forward(&context, y, x, weights_of(p, unit, false), mb->arena);
            recompute_forward_done(p, mb, i, x, y, before);
            balance_leave(p, unit);
            adapter_forward(p, mb, unit, y);
            arena_release(p->scratch, mark);
            advance(p, layer_forward_flops(model, context.layer, rows_of(p)));
        }
        tensor_site(p->run->plan, &site_layer_forward, where, y);
        if (p->run->plan) tensor_round(y, p->run->config->precision.residual); /* what deviates is stored as all else */
        record_sketches(p, microbatch, unit->index, SKETCH_FORWARD_OUT, y);
        if (p->run->options->look) record_rows(p, microbatch, unit->index, &site_layer_forward, 0, y);
        if (!(unit->index == 0 && p->is_last && model->tie_embeddings) && reshards(p, unit, microbatch)) {
            unit_reshard(unit, storage_of(p));
            if (experts) unit_reshard(experts, storage_of(p));
        }
        x = y;
    }
    mb->output = x;
    if (p->is_last) head_run_forward(p, microbatch, mb, x);
    reshard_after_forward(p, microbatch);
}

/* A unit's weight gradient is done: note what went in. */
static void gradient_done(struct program *p, int microbatch, struct unit *unit, const void *probes, const struct ledger *ledger, int part)
{
    const struct ops *ops = p->run->ops;
    struct where where = program_where(p, microbatch, unit->index);
    if (p->run->plan) {
        for (int i = 0; i < unit->count; i++) {
            where.param = p->run->params.params[unit->params[i].param].info.name;
            tensor_site(p->run->plan, &site_layer_weight_gradient, where, unit_grad_tensor(unit, i, storage_of(p)));
        }
        where.param = NULL;
    }
    if (unit->trained_count == 0) return; /* frozen */
    vector_round(unit->grad, unit->trained_count, storage_of(p), unit->is_narrow ? FORMAT_BF16 : p->run->config->precision.accumulate);
    ops->vector_add(unit->grad_probes, unit->grad_probes, probes, unit->probe_count);
    for (int i = 0; i < ledger->count; i++) {
        struct ledger_term term = ledger->terms[i];
        term.origin.part = part;
        ledger_add_term(&unit->grad_ledger, term.origin, term.times, term.scale);
    }
    unit->is_unreduced = true;
    grad_accumulate(p, unit, where);
}

static void post_backward(struct program *p, int microbatch, struct unit *unit)
{
    const struct layout *layout = &p->run->config->layout;
    if (unit->trained_count > 0) bucket_backward_done(unit, &p->context, program_where(p, microbatch, unit->index));
    else unit->backwards++;
    grad_accumulate_reduced(p, unit, program_where(p, microbatch, unit->index));
    if (layout->reshard_after_forward || unit->backwards == layout->microbatches) unit_reshard(unit, storage_of(p));
}

static void head_run_backward(struct program *p, int microbatch, struct microbatch *mb)
{
    int output_param, head_index = unit_count(&p->run->config->model) - 1;
    struct unit *head = program_unit(p, head_index, 0), *output = output_unit(p, &output_param);
    struct where where = program_where(p, microbatch, head_index);
    unshard(p, head, where, true);
    if (output != head) unit_unshard(output, &p->context, program_where(p, microbatch, output->index), true);
    struct head_weights weights = {unit_param_tensor(head, 0, storage_of(p)), unit_param_tensor(output, output_param, storage_of(p))};
    struct head_weights gradients = {unit_grad_tensor(head, 0, storage_of(p)), unit_grad_tensor(output, output_param, storage_of(p))};
    struct layer_context context = layer_context(p, mb);
    context.where = where;
    struct tensor dx = gradient_buffer(p, mb, &mb->output_probes);
    size_t parity = (size_t)(p->step & 1), m = (size_t)p->run->config->layout.microbatches;
    memset(mb->output_probes, 0, head->probe_count * format_storage_bytes(storage_of(p)));
    format_set(mb->output_probes, (parity * (size_t)p->context.data_ranks + (size_t)p->data_rank) * m + (size_t)microbatch,
               storage_of(p), mb->seed * p->loss_scale);
    ledger_clear(&mb->grad_ledger);
    ledger_add_term(&mb->grad_ledger, (struct origin){p->step, p->data_rank, microbatch, 0}, 1, mb->seed * p->loss_scale);
    if (p->loss_scale != 1) p->run->ops->vector_scale(mb->token_weight.data, p->loss_scale, (size_t)tensor_count(mb->token_weight));
    struct arena_mark mark = arena_mark(mb->arena);
    head_backward_input(&context, dx, mb->token_weight, mb->targets, &weights, mb->head, mb->arena);
    unit_begin_gradient(head, &p->context, where);
    unit_begin_gradient(output, &p->context, program_where(p, microbatch, output->index));
    head_backward_weight(&context, &gradients, mb->head);
    recompute_note_held(p);
    arena_release(mb->arena, mark);
    tensor_site(p->run->plan, &site_layer_backward, where, dx);
    if (p->run->plan) tensor_round(dx, p->run->config->precision.residual);
    record_sketches(p, microbatch, head_index, SKETCH_BACKWARD_OUT, dx);
    advance(p, 2 * head_flops(p));
    gradient_done(p, microbatch, head, mb->output_probes, &mb->grad_ledger, 0);
    if (output != head) gradient_done(p, microbatch, output, mb->output_probes, &mb->grad_ledger, 1);
    post_backward(p, microbatch, head);
    if (output != head && output->part == 1) post_backward(p, microbatch, output);
    mb->output_grad = dx;
}

void stage_backward(struct program *p, int microbatch)
{
    const struct model_config *model = &p->run->config->model;
    struct microbatch *mb = &p->microbatches[microbatch];
    struct layer_context context = layer_context(p, mb);
    if (p->is_last) head_run_backward(p, microbatch, mb);
    else record_sketches(p, microbatch, p->record->first_unit + p->record->units - 1, SKETCH_BACKWARD_IN, mb->output_grad);
    for (int i = p->units_count - 1; i >= 0; i--) {
        struct unit *unit = &p->units[i];
        if (unit->part || unit->is_experts || unit->index == model->layers + 1) continue;
        struct where where = program_where(p, microbatch, unit->index);
        struct tensor dy = mb->output_grad;
        struct unit *experts = experts_of(p, unit);
        unit_begin_gradient(unit, &p->context, where);
        if (experts) unit_begin_gradient(experts, &p->context, where);
        if (unit->index == 0) {
            context.where = where;
            embedding_backward(&context, unit_grad_tensor(unit, 0, storage_of(p)), mb->tokens, dy);
        } else {
            void *probes;
            struct tensor dx = gradient_buffer(p, mb, &probes);
            if (experts) unshard(p, experts, where, true);
            unshard(p, unit, where, true);
            enter_layer(p, &context, NULL, unit, microbatch);
            struct arena_mark scratch = arena_mark(p->scratch), mark = arena_mark(mb->arena); /* what the weights' part needs of the input's dies with it */
            struct tensor *weights = weights_of(p, unit, false), *gradients = weights_of(p, unit, true);
            context.router = balance_enter(p, mb, unit, microbatch, true);
            if (experts) send_contribution(p, mb, experts);
            bool computes = !experts || choice_site(p->run->plan, p->record, &site_ep_weight_gradient, where, experts->index, true);
            if (!computes) lose_gradients(p, unit, experts, gradients);
            recompute_layer(p, microbatch, i, &context, weights);
            layer_backward_input(&context, dx, dy, weights, mb->layers[i], mb->arena);
            layer_backward_weight(&context, gradients, mb->layers[i]);
            if (!computes) ledger_clear(&experts->arrived_ledger);
            if (!computes) memset(experts->arrived_probes, 0, experts->probe_count * format_storage_bytes(storage_of(p)));
            adapter_backward(p, mb, unit, dy);
            recompute_note_held(p);
            mb->layers[i] = NULL;
            arena_release(mb->arena, mark);
            arena_release(p->scratch, scratch);
            memcpy(probes, mb->output_probes, unit->probe_count * format_storage_bytes(storage_of(p)));
            tensor_site(p->run->plan, &site_layer_backward, where, dx);
            if (p->run->plan) tensor_round(dx, p->run->config->precision.residual);
            record_sketches(p, microbatch, unit->index, SKETCH_BACKWARD_OUT, dx);
            advance(p, 2 * layer_forward_flops(model, context.layer, rows_of(p)) +
                           layer_recompute_flops(model, &p->run->config->layout.recompute, context.layer, rows_of(p)));
            mb->output_grad = dx;
            mb->output_probes = probes;
        }
        if (experts) {
            gradient_done(p, microbatch, experts, experts->arrived_probes, &experts->arrived_ledger, 0);
            post_backward(p, microbatch, experts);
        }
        gradient_done(p, microbatch, unit, mb->output_probes, &mb->grad_ledger, 0);
        post_backward(p, microbatch, unit);
    }
    mb->input_grad = mb->output_grad;
    mb->input_probes = mb->output_probes;
}
