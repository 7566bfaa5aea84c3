/* job: rows, ledgers and sites that all methods use. See job.h. */
#include "model/context/job.h"

#include <stdlib.h>
#include <string.h>

#include "sim/assertion.h"

/* ---- sites ---- */

struct where context_where(const struct context_call *call, int hop)
{
    struct where where = call->where;
    where.hop = hop;
    return where;
}

/* Every decision is in the run's log, as due or not: whoever reads it compares. */
static bool decided(const struct context_call *call, const struct site *site, bool taken, bool due)
{
    if (call->record && !call->record->mute) {
        struct choice_fact fact = {site, call->where.step, call->where.microbatch, call->unit, 0, taken, due};
        record_push(call->record, choices, fact);
    }
    return taken;
}

bool context_decides(const struct context_call *call, const struct site *site, int hop, bool due)
{
    return decided(call, site, decision_site(call->plan, site, context_where(call, hop), due, due), due);
}

bool context_skips(const struct context_call *call, const struct site *site, int hop, bool due, bool always)
{
    return decided(call, site, mode_site(call->plan, site, context_where(call, hop), due, always), due);
}

double context_factor(const struct context_call *call, const struct site *site, int hop, double due)
{
    static const struct factor_numbers none = {.M = 1, .D = 1, .P = 1, .C = 1, .T = 1, .E = 1, .A = 1, .N = 1, .N_all = 1, .N_unshifted = 1,
                                               .n = 1, .n_rank = 1, .n_rank_unshifted = 1, .D_shard = 1, .D_replicate = 1};
    double value = factor_site(call->plan, site, context_where(call, hop), due, call->numbers ? call->numbers : &none);
    if (call->record && !call->record->mute) {
        int step = call->where.step;
        struct factor_fact fact = {.site = site, .step = step, .microbatch = call->where.microbatch, .unit = call->unit, .value = value, .during = step};
        record_push(call->record, factors, fact);
    }
    return value;
}

/* ---- rows ---- */

static struct context_rows rows_new(const struct context_call *call, int64_t count)
{
    size_t bytes = (size_t)(call->batch * count) * sizeof(int32_t);
    return (struct context_rows){count, arena_alloc(call->scratch, bytes + 1), call->documents ? arena_alloc(call->scratch, bytes + 1) : NULL};
}

static void documents_fill(const struct context_call *call, struct context_rows rows)
{
    for (int64_t b = 0; rows.documents && b < call->batch; b++) {
        for (int64_t i = 0; i < rows.count; i++)
            rows.documents[b * rows.count + i] = call->documents[b * call->seq + rows.positions[b * rows.count + i]];
    }
}

/* Positions of member c in sequence b by a layout, joint rows left out. */
static int64_t positions_of(const struct context_call *call, const struct context_layout *layout, int c, int64_t b, int32_t *ret)
{
    int64_t front = call->joint_place == JOINT_FRONT ? call->joint : 0, alone = call->seq - call->joint;
    const int32_t *documents = call->documents ? call->documents + b * call->seq + front : NULL;
    int64_t count = layout->positions(alone, call->cp->group->size, c, documents, ret);
    for (int64_t i = 0; ret && i < count; i++) ret[i] += (int32_t)front;
    return count;
}

static struct context_rows own_rows(const struct context_call *call, const struct context_layout *layout, int c)
{
    int64_t due = positions_of(call, call->cp->layout, c, 0, NULL), there = positions_of(call, layout, c, 0, NULL);
    struct context_rows rows = rows_new(call, due);
    int32_t *all = arena_alloc(call->scratch, (size_t)(there + 1) * sizeof *all);
    for (int64_t b = 0; b < call->batch; b++) {
        positions_of(call, layout, c, b, all);
        for (int64_t i = 0; i < due; i++) rows.positions[b * due + i] = i < there ? all[i] : there > 0 ? all[there - 1] : 0;
    }
    documents_fill(call, rows);
    return rows;
}

struct context_rows *context_blocks(const struct context_call *call)
{
    const struct context_layout *layout = call->cp->layout;
    int size = call->cp->group->size;
    if (size > 1 && !context_decides(call, &site_cp_layout, -1, true))
        layout = context_layout_find(!strcmp(layout->name, "contiguous") ? "zigzag" : "contiguous");
    struct context_rows *blocks = arena_alloc(call->scratch, (size_t)size * sizeof *blocks);
    for (int c = 0; c < size; c++) blocks[c] = own_rows(call, layout, c);
    return blocks;
}

static struct context_rows run_of_rows(const struct context_call *call, int64_t first, int64_t count)
{
    struct context_rows rows = rows_new(call, count);
    for (int64_t i = 0; i < call->batch * count; i++) rows.positions[i] = (int32_t)(first + i % count);
    documents_fill(call, rows);
    return rows;
}

struct context_rows context_joint_rows(const struct context_call *call)
{
    return run_of_rows(call, call->joint_place == JOINT_FRONT ? 0 : call->seq - call->joint, call->joint);
}

struct context_rows context_all_rows(const struct context_call *call)
{
    return run_of_rows(call, 0, call->seq);
}

struct context_rows context_with_joint(const struct context_call *call, const struct context_rows *own, const struct context_rows *joint)
{
    if (joint->count == 0) return *own;
    struct context_rows rows = rows_new(call, own->count + joint->count);
    const struct context_rows *first = call->joint_place == JOINT_FRONT ? joint : own, *second = first == own ? joint : own;
    for (int64_t b = 0; b < call->batch; b++) {
        for (int64_t i = 0; i < rows.count; i++) {
            const struct context_rows *from = i < first->count ? first : second;
            int64_t at = b * from->count + (i < first->count ? i : i - first->count);
            rows.positions[b * rows.count + i] = from->positions[at];
            if (rows.documents) rows.documents[b * rows.count + i] = from->documents[at];
        }
    }
    return rows;
}

struct context_rows context_rows_as(const struct context_call *call, const struct context_rows *rows, int64_t count)
{
    struct context_rows as = rows_new(call, count);
    for (int64_t b = 0; b < call->batch; b++) {
        for (int64_t i = 0; i < count; i++) {
            int64_t at = i < rows->count ? i : rows->count - 1;
            as.positions[b * count + i] = rows->count > 0 ? rows->positions[b * rows->count + at] : 0;
            if (as.documents) as.documents[b * count + i] = rows->count > 0 ? rows->documents[b * rows->count + at] : -1;
        }
    }
    return as;
}

struct context_job context_job_of(struct context_call *call, struct context_rows *blocks, struct context_rows own)
{
    struct context_job job = {
        .call = call, .size = 1, .blocks = blocks, .joint = context_joint_rows(call), .heads = call->heads, .kv_heads = call->kv_heads,
        .q = call->q, .k = call->k, .v = call->v, .out = call->out, .lse = call->lse, .d_out = call->d_out, .dq = call->dq, .dk = call->dk, .dv = call->dv,
        .sinks = call->sinks, .d_sinks = call->d_sinks, .lone = call->cp->group->size,
    };
    job.queries = context_with_joint(call, &own, &job.joint);
    size_t bytes = (size_t)call->cp->group->size * sizeof(int32_t);
    job.times_k = arena_zalloc(call->scratch, bytes);
    job.times_v = arena_zalloc(call->scratch, bytes);
    return job;
}

/* ---- numbers of rows ---- */

struct tensor context_rows_alloc(const struct context_call *call, int64_t rows, int heads, struct arena *arena)
{
    size_t bytes = (size_t)(call->batch * rows * heads * call->head_dim) * format_storage_bytes(call->ops->storage);
    return tensor_4d(arena_alloc(arena, bytes + 1), call->ops->storage, call->batch, rows, heads, call->head_dim);
}

static size_t row_bytes(struct tensor t)
{
    return (size_t)(t.shape[2] * t.shape[3]) * format_storage_bytes(t.storage);
}

struct tensor context_rows_take(const struct context_call *call, struct tensor t, int64_t first, int64_t count)
{
    if (first == 0 && count == t.shape[1]) return t;
    struct tensor ret = context_rows_alloc(call, count, (int)t.shape[2], call->scratch);
    size_t row = row_bytes(t);
    for (int64_t b = 0; b < call->batch && count > 0; b++)
        memcpy((char *)ret.data + (size_t)(b * count) * row, (const char *)t.data + (size_t)(b * t.shape[1] + first) * row, (size_t)count * row);
    return ret;
}

void context_rows_put(struct tensor t, int64_t first, struct tensor from)
{
    size_t row = row_bytes(t);
    int64_t count = from.shape[1];
    for (int64_t b = 0; b < t.shape[0] && count > 0; b++)
        memcpy((char *)t.data + (size_t)(b * t.shape[1] + first) * row, (const char *)from.data + (size_t)(b * count) * row, (size_t)count * row);
}

void context_rows_add(const struct ops *ops, struct tensor t, int64_t first, struct tensor from)
{
    size_t row = row_bytes(t);
    int64_t count = from.shape[1];
    for (int64_t b = 0; b < t.shape[0] && count > 0; b++) {
        char *to = (char *)t.data + (size_t)(b * t.shape[1] + first) * row;
        ops->vector_add(to, to, (const char *)from.data + (size_t)(b * count) * row, (size_t)(count * t.shape[2] * t.shape[3]));
    }
}

struct buffer context_buffer(struct tensor t, enum format wire, struct ledger *ledger)
{
    return (struct buffer){.data = t.data, .count = (size_t)tensor_count(t), .storage = t.storage, .wire = wire, .ledger = ledger};
}

/* ---- ledgers ---- */

struct context_ledgers *context_ledgers_new(void)
{
    return memory_zalloc(sizeof(struct context_ledgers));
}

void context_ledgers_free(struct context_ledgers *ledgers)
{
    for (int i = 0; ledgers && i < LEDGER_COUNT; i++) ledger_done(&ledgers->at[i]);
    free(ledgers);
}

struct ledger *context_ledger(const struct context_call *call, enum context_ledger which)
{
    return call->cp->ledgers ? &call->cp->ledgers->at[which] : NULL;
}

void context_ledger_of(const struct context_call *call, struct ledger *ledger, int member)
{
    if (!ledger) return;
    struct origin origin = {call->where.step, member, call->where.microbatch, call->unit};
    ledger_clear(ledger);
    ledger_add_term(ledger, origin, 1, 1.0);
}

int32_t context_ledger_times(const struct context_call *call, const struct ledger *ledger, int parts, int32_t *ret_times)
{
    int32_t others = 0;
    memset(ret_times, 0, (size_t)call->cp->group->size * sizeof *ret_times);
    for (int i = 0; ledger && i < ledger->count; i++) {
        const struct ledger_term *term = &ledger->terms[i];
        bool here = term->origin.step == call->where.step && term->origin.microbatch == call->where.microbatch && term->origin.part == call->unit;
        if (here && term->origin.rank >= 0 && term->origin.rank < call->cp->group->size) {
            ret_times[term->origin.rank] += term->times / parts;
            others += term->times % parts;
        } else {
            others += term->times;
        }
    }
    return others;
}

static int32_t *kept_times(const struct context_call *call, const int32_t *times)
{
    size_t bytes = (size_t)call->cp->group->size * sizeof *times;
    int32_t *ret = arena_alloc(call->record->arena, bytes);
    memcpy(ret, times, bytes);
    return ret;
}

void context_note_consumption(const struct context_call *call, bool backward, const int32_t *k, const int32_t *v, const int32_t *dk,
                              const int32_t *dv, int32_t others)
{
    if (!call->record || !call->cp->ledgers) return;
    for (int c = 0; c < call->cp->group->size; c++) {
        others += abs(k[c] - v[c]);
        if (dk) others += abs(dk[c] - dv[c]);
    }
    struct consumption_fact fact = {call->where.step, call->where.microbatch, call->unit, backward, call->cp->group->size, call->cp->group->me,
                                    kept_times(call, v), dk ? kept_times(call, dk) : NULL, others};
    record_push(call->record, consumptions, fact);
}
