/* collectives: every operation as a frame around an algorithm, and the registry of algorithms.
 *
 * A frame cuts the caller's buffers into parts, lets the algorithm move them, divides an average, and
 * settles the ledger:
 *   all_reduce      each part has come by its own messages and so has its own ledger. In a right run all
 *                   are equal, and that is the result's. Where they are not, the result says of each origin
 *                   what every element holds at least: the smallest multiplicity over the parts.
 *   all_gather      the sum over the parts: what the whole buffer is made of.
 *   reduce_scatter  that of the part.
 * An average divides the sum by the size (a true division, rounded to the wire's format) and scales the
 * ledger by 1/size. Values are rounded to the wire's format before they move and after each addition, the
 * rank's own part too, so that all members end with the same bits. */
#include "collectives/communicator_state.h"

#include <string.h>
#include "sim/assertion.h"

/* ---- registry ---- */

#define OP_all_reduce OP_ALL_REDUCE
#define OP_all_gather OP_ALL_GATHER
#define OP_reduce_scatter OP_REDUCE_SCATTER
#define OP_broadcast OP_BROADCAST
#define OP_gather OP_GATHER
#define OP_barrier OP_BARRIER

static const struct algorithm algorithms[] = {
#define ALGORITHM(op, name) {OP_##op, {#op, #name}, op##_##name},
#include "collectives/collectives.def"
#undef ALGORITHM
};
enum { ALGORITHM_COUNT = sizeof algorithms / sizeof *algorithms };

int collective_algorithm_count(void)
{
    return ALGORITHM_COUNT;
}

const struct collective_algorithm *collective_algorithm(int i)
{
    ASSERT(i >= 0 && i < ALGORITHM_COUNT);
    return &algorithms[i].info;
}

const struct algorithm *algorithm_find(enum collective_op op, const char *name)
{
    for (int i = 0; i < ALGORITHM_COUNT; i++)
        if (algorithms[i].op == op && (!name || strcmp(algorithms[i].info.name, name) == 0))
            return &algorithms[i];
    return NULL;
}

/* ---- pieces of frames ---- */

static void copy(void *to, const void *from, size_t count, enum format storage)
{
    if (count > 0 && to != from)
        memmove(to, from, count * format_storage_bytes(storage));
}

static void average(const struct operation *o, void *data, size_t count, struct ledger *ledger)
{
    if (o->reduce != REDUCE_AVG)
        return;
    if (o->storage == FORMAT_FP64)
        for (size_t i = 0; i < count; i++)
            ((double *)data)[i] /= (double)o->size;
    else
        for (size_t i = 0; i < count; i++)
            ((float *)data)[i] /= (float)o->size;
    values_round(data, count, o->storage, o->wire);
    if (ledger)
        ledger_scale(ledger, 1.0 / o->size);
}

/* to = the terms that both have, each as often as where it is rarer. */
static void ledger_common(struct ledger *to, const struct ledger *from)
{
    if (to->tag_sum == from->tag_sum && to->count == from->count)
        return;
    struct ledger both;
    ledger_init(&both);
    for (int i = 0; i < to->count; i++) {
        const struct ledger_term *a = &to->terms[i], *b = ledger_find(from, a->origin);
        if (!b)
            continue;
        const struct ledger_term *least = b->times < a->times ? b : a;
        ledger_add_term(&both, least->origin, least->times, least->scale);
    }
    ledger_copy(to, &both);
    ledger_done(&both);
}

/* all_reduce's ledger over its parts; empty parts say nothing about elements, unless all are. */
static void ledger_over_parts(struct operation *o, struct ledger *to, bool with_old)
{
    size_t total = 0;
    for (int i = 0; i < o->size; i++)
        total += o->counts[i];
    struct ledger *common = &o->c->ledger;
    bool first = true;
    for (int i = 0; i < o->size; i++) {
        if (!o->parts[i].ledger || (total > 0 && o->counts[i] == 0))
            continue;
        if (first)
            ledger_copy(common, o->parts[i].ledger);
        else
            ledger_common(common, o->parts[i].ledger);
        first = false;
    }
    if (with_old) /* a tail that did not take part (shrink-count) */
        ledger_common(common, to);
    ledger_copy(to, common);
}

/* all_gather's and gather's ledger: all parts, but for those that lie wholly past `count` (a deviation). */
static void ledger_of_all(struct operation *o, struct ledger *to, size_t count)
{
    size_t offset = 0;
    ledger_clear(&o->c->ledger);
    for (int i = 0; i < o->size; offset += o->counts[i++])
        if (o->parts[i].ledger && (offset < count || o->counts[i] == 0))
            ledger_add(&o->c->ledger, o->parts[i].ledger);
    ledger_copy(to, &o->c->ledger);
}

/* This rank's part goes to its place, the others are yet unknown. */
static void place_own(struct operation *o, struct buffer in)
{
    for (int i = 0; i < o->size; i++)
        o->parts[i].ledger = NULL;
    struct part own = o->parts[o->me], *place = &o->parts[o->me];
    copy(place->data, in.data, place->count, o->storage);
    values_round(place->data, place->count - place->uncounted, o->storage, o->wire);
    own.data = place->data;
    own.ledger = in.ledger;
    part_take(o, place, &own);
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- operations ---- */

void all_reduce(struct communicator *c, struct group *g, const struct comm *how, struct buffer in_out,
                enum reduce_op op)
{
    struct operation *o = operation_begin(c, g, how, OP_ALL_REDUCE, in_out, op, -1);
    size_t count = deviation_count(o->due, in_out.count), size = (size_t)o->size;
    for (size_t i = 0; i < size; i++)
        o->counts[i] = count / size + (i < count % size);
    operation_layout(o, in_out.data, in_out.ledger);
    size_t uncounted = least(how->uncounted, count); /* of the whole buffer: the last elements */
    for (int i = o->size - 1; i >= 0; i--) {
        o->parts[i].uncounted = least(uncounted, o->counts[i]);
        uncounted -= o->parts[i].uncounted;
    }
    if (operation_enter(o, count)) {
        operation_run(o);
        if (in_out.ledger)
            ledger_over_parts(o, in_out.ledger, count < in_out.count);
        average(o, in_out.data, count, in_out.ledger);
    }
    size_t first = o->counts[0];
    in_out.count = count;
    deviation_result(c, how->site, o->where, OP_ALL_REDUCE, o->due, in_out, first);
    operation_end(o);
}

void all_gather(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in,
                const size_t *counts)
{
    struct buffer shape = {.storage = in.storage, .wire = in.wire, .ledger = in.ledger ? in.ledger : out.ledger};
    struct operation *o = operation_begin(c, g, how, OP_ALL_GATHER, shape, REDUCE_SUM, -1);
    ASSERT(in.storage == out.storage && (!counts || counts[g->me] == in.count));
    size_t total = operation_counts(o, deviation_count(o->due, in.count), counts, g->size);
    ASSERT(total == out.count || o->due);
    void *base = total <= out.count ? out.data : operation_scratch(o, total);
    operation_layout(o, base, NULL);
    bool enter = operation_enter(o, total);
    if (enter || deviation_kind(o->due) == DEVIATION_SKIP) {
        place_own(o, in);
        if (enter)
            operation_run(o);
        out.count = least(total, out.count);
        copy(out.data, base, out.count, out.storage);
        if (out.ledger)
            ledger_of_all(o, out.ledger, out.count);
    }
    deviation_result(c, how->site, o->where, OP_ALL_GATHER, o->due, out, o->counts[0]);
    operation_end(o);
}

void reduce_scatter(struct communicator *c, struct group *g, const struct comm *how, struct buffer out,
                    struct buffer in, const size_t *counts, enum reduce_op op)
{
    struct buffer shape = {.storage = in.storage, .wire = in.wire, .ledger = in.ledger ? in.ledger : out.ledger};
    struct operation *o = operation_begin(c, g, how, OP_REDUCE_SCATTER, shape, op, -1);
    ASSERT(in.storage == out.storage && (!counts || counts[g->me] == out.count));
    size_t own = deviation_count(o->due, out.count);
    size_t total = operation_counts(o, own, counts, g->size);
    ASSERT(total == in.count || o->due);
    void *base = in.data;
    if (total > in.count) { /* a larger group (a deviation): what this rank does not have is NaN */
        base = operation_scratch(o, total);
        copy(base, in.data, in.count, in.storage);
    }
    if (deviation_kind(o->due) == DEVIATION_PERMUTE_CHUNKS)
        values_rotate(c, base, total, o->counts[0], in.storage);
    operation_layout(o, base, in.ledger);
    struct part *mine = &o->parts[o->me];
    bool enter = operation_enter(o, total);
    if (enter)
        operation_run(o);
    out.count = own;
    if (enter || deviation_kind(o->due) == DEVIATION_SKIP) {
        copy(out.data, mine->data, own, out.storage);
        if (out.ledger && !mine->ledger)
            ledger_clear(out.ledger);
        else if (out.ledger && mine->ledger != out.ledger)
            ledger_copy(out.ledger, mine->ledger);
    }
    if (enter)
        average(o, out.data, own, out.ledger);
    deviation_result(c, how->site, o->where, OP_REDUCE_SCATTER, o->due, out, own);
    operation_end(o);
}

void broadcast(struct communicator *c, struct group *g, const struct comm *how, struct buffer in_out, int root)
{
    struct operation *o = operation_begin(c, g, how, OP_BROADCAST, in_out, REDUCE_SUM, root);
    in_out.count = deviation_count(o->due, in_out.count);
    struct part *whole = &o->parts[0];
    *whole = (struct part){
        .data = in_out.data, .count = in_out.count, .uncounted = how->uncounted, .ledger = in_out.ledger,
        .own = o->ledgers ? &o->ledgers_own[0] : NULL,
    };
    if (operation_enter(o, in_out.count)) {
        if (o->me == o->root)
            values_round(in_out.data, in_out.count, o->storage, o->wire);
        operation_run(o);
        if (in_out.ledger && whole->ledger != in_out.ledger)
            ledger_copy(in_out.ledger, whole->ledger);
    }
    deviation_result(c, how->site, o->where, OP_BROADCAST, o->due, in_out, in_out.count);
    operation_end(o);
}

void gather(struct communicator *c, struct group *g, const struct comm *how, struct buffer out, struct buffer in,
            const size_t *counts, int root)
{
    ASSERT(root >= 0);
    bool has_out = g->me == root; /* elsewhere out may be anything */
    struct buffer shape = {.storage = in.storage, .wire = in.wire, .ledger = in.ledger};
    struct operation *o = operation_begin(c, g, how, OP_GATHER, shape, REDUCE_SUM, root);
    ASSERT(!counts || counts[g->me] == in.count);
    size_t total = operation_counts(o, deviation_count(o->due, in.count), counts, g->size);
    ASSERT(!has_out || total == out.count || o->due);
    void *base = has_out && total <= out.count ? out.data : operation_scratch(o, total);
    operation_layout(o, base, NULL);
    bool enter = operation_enter(o, total);
    if (enter || deviation_kind(o->due) == DEVIATION_SKIP) {
        place_own(o, in);
        if (enter)
            operation_run(o);
        if (has_out) {
            out.count = least(total, out.count);
            copy(out.data, base, out.count, out.storage);
            if (out.ledger)
                ledger_of_all(o, out.ledger, out.count);
        }
    }
    if (has_out)
        deviation_result(c, how->site, o->where, OP_GATHER, o->due, out, o->counts[0]);
    operation_end(o);
}

void barrier(struct communicator *c, struct group *g, const struct comm *how)
{
    struct buffer shape = {.storage = FORMAT_FP32, .wire = FORMAT_FP32};
    struct operation *o = operation_begin(c, g, how, OP_BARRIER, shape, REDUCE_SUM, -1);
    if (operation_enter(o, 0))
        operation_run(o);
    operation_end(o);
}
