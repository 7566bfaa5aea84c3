/* attention: the plug-in's attention as a method of context parallelism. It is given dense copies of its own, so that a write where
 * none is allowed is seen and nothing of hpsim's is lost by it; what it made is rounded and put where a method's results go.
 * There is no ledger in here: what met what is inferred from the numbers, as in a real system. */
#include "model/plugin/call.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/precision.h"
#include "model/record.h"
#include "model/sites.h"
#include "sim/arena.h"
#include "sim/assertion.h"

static void forward(struct context_call *call);

static const struct plugin *plugin_of(const struct context_call *call)
{
    return (const struct plugin *)call->cp->method;
}

static struct tensor dense_like(struct tensor t, void *data)
{
    t.data = data;
    for (int64_t d = t.dims - 1, stride = 1; d >= 0; d--) {
        t.stride[d] = stride;
        stride *= t.shape[d];
    }
    return t;
}

static void copy(struct tensor to, struct tensor from)
{
    size_t width = format_storage_bytes(from.storage);
    ASSERT(from.dims <= 4 && to.dims == from.dims);
    int64_t n[4] = {1, 1, 1, 1}, s[4] = {0}, r[4] = {0};
    for (int d = 0; d < from.dims; d++) {
        n[4 - from.dims + d] = from.shape[d];
        s[4 - from.dims + d] = from.stride[d];
        r[4 - from.dims + d] = to.stride[d];
    }
    for (int64_t a = 0; a < n[0]; a++) for (int64_t b = 0; b < n[1]; b++) for (int64_t c = 0; c < n[2]; c++) {
        const char *source = (const char *)from.data + (size_t)(a * s[0] + b * s[1] + c * s[2]) * width;
        char *goal = (char *)to.data + (size_t)(a * r[0] + b * r[1] + c * r[2]) * width;
        if (s[3] == 1 && r[3] == 1) {
            memcpy(goal, source, (size_t)n[3] * width);
        } else {
            for (int64_t d = 0; d < n[3]; d++) memcpy(goal + (size_t)(d * r[3]) * width, source + (size_t)(d * s[3]) * width, width);
        }
    }
}

/* A dense copy that the plug-in may read. */
static const void *give(struct hpsim_call *call, const char *name, struct tensor from)
{
    size_t bytes = (size_t)tensor_bytes(from);
    void *original = arena_alloc(call->arena, bytes ? bytes : 1);
    if (bytes) copy(dense_like(from, original), from);
    call_look_at_arrived(call, original, (size_t)tensor_count(from));
    return call_block_new(call, name, bytes, original);
}

static const void *give_integers(struct hpsim_call *call, const char *name, const void *from, size_t bytes)
{
    return call_block_new(call, name, bytes, from);
}

static void *room(struct hpsim_call *call, const char *name, struct tensor like)
{
    return call_block_new(call, name, (size_t)tensor_bytes(like), NULL);
}

static bool is_poison(const void *value, size_t width)
{
    char poison[8];
    memory_poison(poison, width);
    return !memcmp(value, poison, width);
}

/* What is still as it was given, where nothing came in that is not a number; all of it: it was left alone. */
static int64_t count_unfilled(const struct hpsim_call *call, const char *data, int64_t count, int64_t *ret_first)
{
    int64_t unfilled = 0;
    size_t width = call_width(call);
    for (int64_t i = count - 1; i >= 0; i--) {
        if (!is_poison(data + (size_t)i * width, width)) continue;
        unfilled++;
        *ret_first = i;
    }
    return unfilled;
}

static void look_at(struct hpsim_call *call, const char *name, const void *data, struct tensor like)
{
    int64_t first = 0, count = tensor_count(like), unfilled = call->met_nan ? 0 : count_unfilled(call, data, count, &first), at[4] = {0};
    if (unfilled == 0) return;
    for (int d = like.dims - 1; d >= 0; d--) {
        at[d] = first % like.shape[d];
        first /= like.shape[d];
    }
    call_misused(call, HPSIM_WRONG_POINTER, "left %lld of %lld elements of %s unfilled; the first: sequence %lld, row %lld, head %lld, element %lld",
                 (long long)unfilled, (long long)count, name, (long long)at[0], (long long)at[1], (long long)at[2], (long long)at[3]);
}

/* Its result into the tensor of the call. */
static void put(struct hpsim_call *call, struct tensor to, void *data, enum format format)
{
    if (tensor_count(to) == 0) return;
    vector_round(data, (size_t)tensor_count(to), to.storage, format);
    copy(to, dense_like(to, data));
}

static void describe_run(const struct context_call *c, bool backward, char text[WATCH_OPERATION])
{
    const struct where *w = &c->where;
    int used = snprintf(text, WATCH_OPERATION, "attention %s", backward ? "backward" : "forward");
    const struct { const char *name; int value; } places[] = {{"step", w->step}, {"micro-batch", w->microbatch}, {"layer", w->layer}};
    bool any = false;
    for (int i = 0; i < 3; i++) {
        if (places[i].value < 0) continue;
        used += snprintf(text + used, WATCH_OPERATION - (size_t)used, "%s%s %d", any ? ", " : " (", places[i].name, places[i].value);
        any = true;
    }
    if (any) snprintf(text + used, WATCH_OPERATION - (size_t)used, ")");
}

static void fill(struct hpsim_call *call, struct hpsim_attention *a, bool backward)
{
    struct context_call *c = call->context;
    const int members = c->cp->group->size, me = c->cp->group->me;
    int64_t *rows = arena_alloc(call->arena, (size_t)members * sizeof *rows);
    for (int m = 0; m < members; m++) rows[m] = context_rows(c, m);
    size_t positions_bytes = (size_t)(c->batch * rows[me]) * sizeof(int32_t);
    int32_t *positions = arena_alloc(call->arena, positions_bytes + 1);
    for (int64_t b = 0; b < c->batch; b++) context_positions(c, me, b, positions + b * rows[me]);
    *a = (struct hpsim_attention){
        .size = sizeof *a, .api = &plugin_api, .call = call, .members = members, .member = me, .real_bytes = (int32_t)call_width(call),
        .heads = c->heads, .kv_heads = c->kv_heads, .head_dim = c->head_dim, .batch = c->batch, .rows = rows[me], .seq = c->seq,
        .rows_of = give_integers(call, "rows_of", rows, (size_t)members * sizeof *rows),
        .positions = give_integers(call, "positions", positions, positions_bytes),
        .documents = c->documents ? give_integers(call, "documents", c->documents, (size_t)(c->batch * c->seq) * sizeof(int32_t)) : NULL,
        .causal = c->causal, .window = c->window, .scale = 1 / sqrt(c->head_dim),
        .q = give(call, "q", c->q), .k = give(call, "k", c->k), .v = give(call, "v", c->v),
    };
    if (backward) {
        a->out = (void *)(uintptr_t)give(call, "out", c->out);
        a->lse = (void *)(uintptr_t)give(call, "lse", c->lse);
        a->d_out = give(call, "d_out", c->d_out);
        a->dq = room(call, "dq", c->dq);
        a->dk = room(call, "dk", c->dk);
        a->dv = room(call, "dv", c->dv);
    } else {
        a->out = room(call, "out", c->out);
        a->lse = room(call, "lse", c->lse);
    }
}

static void take(struct hpsim_call *call, const struct hpsim_attention *a, bool backward)
{
    struct context_call *c = call->context;
    if (backward) {
        look_at(call, "dq", a->dq, c->dq);
        look_at(call, "dk", a->dk, c->dk);
        look_at(call, "dv", a->dv, c->dv);
        put(call, c->dq, a->dq, c->dq.storage);
        put(call, c->dk, a->dk, c->dk.storage);
        put(call, c->dv, a->dv, c->dv.storage);
        return;
    }
    look_at(call, "out", a->out, c->out);
    put(call, c->out, a->out, c->activation);
    int64_t first, count = tensor_count(c->lse);
    if (count_unfilled(call, a->lse, count, &first) < count) look_at(call, "lse", a->lse, c->lse);
    put(call, c->lse, a->lse, c->lse.storage);
}

bool plugin_left_lse(const struct context_call *call)
{
    size_t width = format_storage_bytes(call->lse.storage);
    int64_t count = tensor_count(call->lse);
    if (call->cp->method->forward != forward || count == 0) return false;
    for (int64_t i = 0; i < count; i++) {
        if (!is_poison((const char *)call->lse.data + (size_t)i * width, width)) return false;
    }
    return true;
}

static void run(struct context_call *c, bool backward)
{
    const struct plugin *plugin = plugin_of(c);
    const struct hpsim_attention_method *method = plugin->description.attention;
    struct arena_mark mark = arena_mark(c->scratch);
    struct hpsim_call *call = arena_zalloc(c->scratch, sizeof *call);
    struct hpsim_attention *attention = arena_zalloc(c->scratch, sizeof *attention);
    char operation[WATCH_OPERATION];
    struct rank *rank = communicator_rank(c->cp->communicator);
    describe_run(c, backward, operation);
    *call = (struct hpsim_call){.plugin = plugin, .slot = plugin_slot(plugin, rank), .rank = rank, .communicator = c->cp->communicator, .group = c->cp->group,
                                .context = c, .arena = c->scratch, .where = c->where, .what = backward ? "attention backward" : "attention forward"};
    fill(call, attention, backward);
    const char *note = rank_note(rank, call->note);
    watch_enter(plugin->watch, call->slot, operation);
    int status = backward ? method->backward(attention) : method->forward(attention);
    watch_leave(call->slot);
    rank_note(rank, note);
    call->slot->last[0] = 0; /* what is found from here on belongs to no call */
    call_finish(call);
    if (status != 0) call_misused(call, status, "returned %d: it could not be done", status);
    take(call, attention, backward);
    arena_release(c->scratch, mark);
}

static void forward(struct context_call *call)
{
    run(call, false);
}

static void backward(struct context_call *call)
{
    run(call, true);
}

/* What it takes is asked where the whole configuration is known (plugin_attention_fits). */
static bool allows(const struct context_shape *shape, char why[320])
{
    if (shape->joint == 0) return true;
    snprintf(why, 320, "joint rows %lld: a plug-in's attention is given none", (long long)shape->joint);
    return false;
}

void plugin_method_make(struct plugin *plugin)
{
    if (plugin->description.attention)
        plugin->method = (struct context_method){.name = plugin->description.attention->name, .allows = allows, .forward = forward, .backward = backward};
}

const struct context_method *plugin_method(const struct plugin *plugin)
{
    return plugin && plugin->description.attention ? &plugin->method : NULL;
}

const struct context_method *context_method_of(const struct run_config *config)
{
    const struct context_method *own = plugin_method(config->plugin);
    const char *name = config->layout.context.method;
    if (own && (!strcmp(name, "plugin") || !strcmp(name, own->name))) return own;
    return context_method_find(name[0] ? name : "ring");
}

static bool ask(const struct plugin *plugin, const struct run_config *config, struct error *error)
{
    enum { WHY = 320 };
    const struct hpsim_attention_method *method = plugin->description.attention;
    const struct context_layout *layout = context_layout_find(config->layout.context.layout);
    const struct model_config *m = &config->model;
    int members = layout_cp(&config->layout);
    if (!method->refuses) return true;
    ASSERT(layout);
    int64_t *rows = memory_alloc((size_t)members * sizeof *rows);
    char *why = memory_zalloc(WHY + 1);
    for (int r = 0; r < members; r++) rows[r] = context_layout_rows(layout, m->seq, members, r);
    struct hpsim_shape shape = {
        .size = sizeof shape, .members = members, .heads = m->heads / config->layout.tp, .kv_heads = m->kv_heads / config->layout.tp, .head_dim = m->head_dim,
        .causal = m->causal, .documents = m->document_mask, .seq = m->seq, .window = m->window, .rows_of = rows,
        .batch = config->workload == WORKLOAD_TRAIN ? layout_sequences_per_microbatch(config) : config->attention.batch,
    };
    watch_enter(plugin->watch, &plugin->watch->slots[0], "attention, asked whether it refuses");
    bool refuses = method->refuses(&shape, why, WHY) != 0;
    watch_leave(&plugin->watch->slots[0]);
    if (refuses) error_input(error, "plug-in '%s': attention '%s' refuses: %s", plugin->name, method->name, why[0] ? why : "it does not say why");
    free(rows);
    free(why);
    return !refuses;
}

bool plugin_attention_fits(const struct plugin *plugin, const struct run_config *config, struct error *error)
{
    bool apart = config->workload == WORKLOAD_ATTENTION, needs_backward = apart ? config->attention.backward : config->workload == WORKLOAD_TRAIN;
    if (!plugin || context_method_of(config) != plugin_method(plugin) || (!apart && layout_cp(&config->layout) == 1)) return true;
    if (needs_backward && !plugin->description.attention->backward)
        return error_input(error, "plug-in '%s': attention '%s' has no backward; allowed: workload attention with attention.backward false, or denoise", plugin->name, plugin->method.name);
    if (apart && config->attention.sinks) return error_input(error, "plug-in '%s': attention '%s' is given no sinks; allowed: attention.sinks false", plugin->name, plugin->method.name);
    return ask(plugin, config, error);
}
