/* context: the tables, positions, and what is the same before every method. See context.h. */
#include "model/context/job.h"

#include <string.h>

#include "sim/assertion.h"

/* ---- tables ---- */

#define LAYOUT(name) extern const struct context_layout context_layout_##name;
#include "model/context/layouts.def"
#undef LAYOUT
#define MERGE(name) extern const struct context_merge context_merge_##name;
#include "model/context/merges.def"
#undef MERGE
#define METHOD(name) extern const struct context_method context_method_##name;
#include "model/context/methods.def"
#undef METHOD

static const struct context_layout *const layouts[] = {
#define LAYOUT(name) &context_layout_##name,
#include "model/context/layouts.def"
#undef LAYOUT
};
static const struct context_merge *const merges[] = {
#define MERGE(name) &context_merge_##name,
#include "model/context/merges.def"
#undef MERGE
};
static const struct context_method *const methods[] = {
#define METHOD(name) &context_method_##name,
#include "model/context/methods.def"
#undef METHOD
};

#define TABLE(kind, table)                                                                                     \
    int context_##kind##_count(void) { return (int)(sizeof table / sizeof *table); }                            \
    const struct context_##kind *context_##kind##_at(int i)                                                     \
    {                                                                                                           \
        return i >= 0 && i < context_##kind##_count() ? table[i] : NULL;                                        \
    }                                                                                                           \
    const struct context_##kind *context_##kind##_find(const char *name)                                        \
    {                                                                                                           \
        for (int i = 0; i < context_##kind##_count(); i++) {                                                    \
            if (!strcmp(table[i]->name, name)) return table[i];                                                 \
        }                                                                                                       \
        return NULL;                                                                                            \
    }
TABLE(layout, layouts)
TABLE(merge, merges)
TABLE(method, methods)

/* ---- positions ---- */

int64_t context_layout_rows(const struct context_layout *layout, int64_t seq, int size, int me)
{
    return layout->positions(seq, size, me, NULL, NULL);
}

int64_t context_rows(const struct context_call *call, int me)
{
    return call->joint + context_layout_rows(call->cp->layout, call->seq - call->joint, call->cp->group->size, me);
}

void context_positions(const struct context_call *call, int me, int64_t b, int32_t *ret)
{
    bool front = call->joint_place == JOINT_FRONT;
    int64_t joint = call->joint, own = context_rows(call, me) - joint, first = front ? joint : 0;
    const int32_t *documents = call->documents ? call->documents + b * call->seq + first : NULL;
    call->cp->layout->positions(call->seq - joint, call->cp->group->size, me, documents, ret + first);
    for (int64_t i = 0; i < own; i++) ret[first + i] += (int32_t)first;
    for (int64_t i = 0; i < joint; i++) ret[front ? i : own + i] = (int32_t)(front ? i : call->seq - joint + i);
}

/* ---- one call ---- */

static void expect_shapes(const struct context_call *call, bool backward)
{
    int64_t rows = context_rows(call, call->cp->group->me), q = call->batch * rows * call->heads * call->head_dim;
    int64_t k = call->batch * rows * call->kv_heads * call->head_dim;
    ASSERT(call->heads > 0 && call->kv_heads > 0 && call->heads % call->kv_heads == 0 && call->joint >= 0 && call->joint <= call->seq);
    ASSERT_MESSAGE(tensor_count(call->q) == q && tensor_count(call->k) == k && tensor_count(call->v) == k && tensor_count(call->out) == q,
                   "rank %d has %lld rows of %lld", call->where.rank, (long long)rows, (long long)call->seq);
    ASSERT(tensor_count(call->lse) == call->batch * call->heads * rows);
    ASSERT(!backward || (tensor_count(call->d_out) == q && tensor_count(call->dq) == q && tensor_count(call->dk) == k && tensor_count(call->dv) == k));
}

static struct tensor in_rows(const struct context_call *call, struct tensor t, int heads)
{
    return tensor_4d(t.data, t.storage, call->batch, context_rows(call, call->cp->group->me), heads, call->head_dim);
}

/* Zeros in rows of `t` that are more than the smallest shard has and that `used` leaves out. */
static struct tensor without_tail(struct context_call *call, struct tensor t, int64_t least, struct memory_range used)
{
    struct tensor copy = context_rows_alloc(call, t.shape[1], (int)t.shape[2], call->scratch);
    size_t row = (size_t)(t.shape[2] * t.shape[3]) * format_storage_bytes(t.storage);
    int64_t first = call->joint_place == JOINT_FRONT ? call->joint : 0, own = t.shape[1] - call->joint;
    if (tensor_count(t) > 0) memcpy(copy.data, t.data, (size_t)tensor_bytes(t));
    for (int64_t b = 0; b < call->batch; b++) {
        for (int64_t i = least; i < own; i++) {
            if (i < least + used.from || i >= least + used.from + used.count)
                memset((char *)copy.data + (size_t)(b * t.shape[1] + first + i) * row, 0, row);
        }
    }
    return copy;
}

/* cp.shard_tail: a buffer of the smallest shard's size, for keys and values of a larger one. */
static void tail_site(struct context_call *call)
{
    int size = call->cp->group->size, me = call->cp->group->me;
    int64_t own = context_rows(call, me), least = own;
    for (int c = 0; c < size; c++) least = context_rows(call, c) < least ? context_rows(call, c) : least;
    if (own == least) return;
    struct memory_range used = memory_range_site(call->plan, &site_cp_shard_tail, context_where(call, -1), own - least);
    if (used.count == own - least) return;
    if (call->record) {
        struct choice_fact fact = {&site_cp_shard_tail, call->where.step, call->where.microbatch, call->unit, used.from, used.count, own - least};
        record_push(call->record, choices, fact);
    }
    call->k = without_tail(call, call->k, least - call->joint, used);
    call->v = without_tail(call, call->v, least - call->joint, used);
}

static struct context_call prepared(struct context_call *call, bool backward)
{
    expect_shapes(call, backward);
    struct context_call c = *call;
    c.q = in_rows(call, c.q, call->heads);
    c.k = in_rows(call, c.k, call->kv_heads);
    c.v = in_rows(call, c.v, call->kv_heads);
    c.out = in_rows(call, c.out, call->heads);
    c.lse = tensor_3d(c.lse.data, c.lse.storage, call->batch, call->heads, context_rows(call, call->cp->group->me));
    if (!c.kept) c.kept = c.scratch;
    if (backward) {
        c.d_out = in_rows(call, c.d_out, call->heads);
        c.dq = in_rows(call, c.dq, call->heads);
        c.dk = in_rows(call, c.dk, call->kv_heads);
        c.dv = in_rows(call, c.dv, call->kv_heads);
    }
    tail_site(&c);
    return c;
}

void context_forward(struct context_call *call)
{
    struct arena_mark mark = arena_mark(call->scratch);
    struct context_call c = prepared(call, false);
    c.saved = NULL;
    call->cp->method->forward(&c);
    call->saved = c.saved;
    if (call->kept || !c.saved) arena_release(call->scratch, mark);
}

void context_backward(struct context_call *call)
{
    struct arena_mark mark = arena_mark(call->scratch);
    struct context_call c = prepared(call, true);
    call->cp->method->backward(&c);
    arena_release(call->scratch, mark);
}
