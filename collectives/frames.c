/* frames: every operation by messages, as a frame around an algorithm.
 *
 * A frame cuts the caller's buffers into parts, lets the algorithm move them, divides an average, and
 * settles the ledger:
 *   all_reduce      each part has come by its own messages and so has its own ledger. In a right run all
 *                   are equal, and that is the result's. Where they are not, the result says of each origin
 *                   what every element holds at least: the smallest multiplicity over the parts.
 *   all_gather, gather, all_to_all   the sum over the parts: what the whole buffer is made of.
 *   the others      that of the part.
 * An average divides the sum by the size (a true division, rounded to the wire's format) and scales the
 * ledger by 1/size. Values are rounded to the wire's format before they move and after each addition, the
 * rank's own part too, so that all members end with the same bits.
 * Inputs stay as they are, unless they are the output too: what an algorithm works on is the output or a copy.
 *
 * Uncounted elements (probes) lie at the end of each part. A deviation of counts or places acts on the counted
 * ones and leaves the tails where they are: they are a check's input, and go through the same additions. */
#include "collectives/communicator_state.h"

#include "sim/assertion.h"

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

static bool skipped(const struct operation *o) /* local data stands for the result */
{
    return deviation_kind(o->due) == DEVIATION_SKIP;
}

static bool copy_lost(const struct operation *o) /* the call is made, and its result is not taken */
{
    return deviation_kind(o->due) == DEVIATION_COPY_LOST;
}

/* Counted elements in sequence, as far as both sides have them, and each part's tail to that part's tail. */
static void copy_counted(const struct operation *o, void *to, const size_t *to_counts, const void *from,
                         const size_t *from_counts, int parts)
{
    size_t i = 0, j = 0, left_i = 0, left_j = 0, to_at = 0, from_at = 0;
    int p = -1, q = -1;
    for (;;) { /* i, j: where the next counted element goes and comes from */
        while (left_i == 0 && ++p < parts) {
            i = to_at;
            left_i = to_counts[p] - least(to_counts[p], o->uncounted);
            to_at += to_counts[p];
        }
        while (left_j == 0 && ++q < parts) {
            j = from_at;
            left_j = from_counts[q] - least(from_counts[q], o->uncounted);
            from_at += from_counts[q];
        }
        if (p >= parts || q >= parts)
            break;
        size_t run = least(left_i, left_j);
        values_copy(values_at(to, i, o->storage), values_at(from, j, o->storage), run, o->storage);
        i += run, j += run, left_i -= run, left_j -= run;
    }
    to_at = from_at = 0;
    for (int k = 0; k < parts; k++) {
        to_at += to_counts[k], from_at += from_counts[k];
        size_t tail = least(o->uncounted, least(to_counts[k], from_counts[k]));
        values_copy(values_at(to, to_at - tail, o->storage), values_at(from, from_at - tail, o->storage), tail,
                    o->storage);
    }
}

/* The counted elements of all parts, rotated to the left by those of the first. */
static void rotate_counted(struct operation *o, void *base)
{
    size_t total = 0, offset = 0;
    void *all = operation_scratch(o, o->total);
    for (int i = 0; i < o->size; offset += o->counts[i++]) {
        size_t counted = o->counts[i] - least(o->counts[i], o->uncounted);
        values_copy(values_at(all, total, o->storage), values_at(base, offset, o->storage), counted, o->storage);
        total += counted;
    }
    values_rotate(o->c, all, total, o->counts[0] - least(o->counts[0], o->uncounted), o->storage);
    total = offset = 0;
    for (int i = 0; i < o->size; offset += o->counts[i++]) {
        size_t counted = o->counts[i] - least(o->counts[i], o->uncounted);
        values_copy(values_at(base, offset, o->storage), values_at(all, total, o->storage), counted, o->storage);
        total += counted;
    }
}

static void average(const struct operation *o, void *data, size_t count, struct ledger *ledger)
{
    int times = o->reduce != REDUCE_AVG ? 0 : deviation_divisions(o->due);
    for (int i = 0; i < times; i++) {
        values_divide(data, count, o->storage, o->size);
        values_round(data, count - least(count, o->uncounted), o->storage, o->wire);
        if (ledger)
            ledger_scale(ledger, 1.0 / o->size);
    }
}

/* What deviates in the result; first: elements of its first part, 0 where parts were put in place before. */
static void result(struct operation *o, struct buffer out, size_t first)
{
    deviation_result(o->c, o->site, o->where, o->op, o->due, out, o->uncounted, first);
}

static void ledger_take(struct ledger *to, const struct ledger *from)
{
    if (to && !from)
        ledger_clear(to);
    else if (to)
        ledger_copy(to, from);
}

/* all_reduce's ledger over its parts; empty parts say nothing about elements, unless all are. */
static void ledger_over_parts(struct operation *o, struct ledger *to, bool with_old)
{
    struct ledger *common = &o->c->ledger;
    bool first = true;
    for (int i = 0; i < o->size; i++) {
        if (!o->parts[i].ledger || (o->total > 0 && o->counts[i] == 0))
            continue;
        if (first && o->parts[i].ledger != common)
            ledger_copy(common, o->parts[i].ledger);
        else if (!first)
            ledger_common(common, o->parts[i].ledger);
        first = false;
    }
    if (with_old) /* a tail that did not take part (shrink-count) */
        ledger_common(common, to);
    ledger_copy(to, common);
}

/* all_gather's ledger and its like: all parts, but for those that lie wholly past `count` (a deviation). */
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
static void place_own(struct operation *o, const void *data, size_t count, const struct ledger *ledger)
{
    for (int i = 0; i < o->size; i++)
        o->parts[i].ledger = NULL;
    struct part *place = &o->parts[o->me];
    if (place->count == count)
        values_copy(place->data, data, count, o->storage);
    else
        copy_counted(o, place->data, &place->count, data, &count, 1);
    part_round(o, place, o->wire);
    struct part own = *place;
    own.ledger = ledger;
    part_take(o, place, &own);
}

/* ---- operations ---- */

/* One region, all_reduce and reduce: the sum is made in the output, or elsewhere where that is not this rank's
 * to write (reduce) or some elements don't take part (shrink-count). */
static void *region_begin(struct operation *o, size_t count, bool writes_out)
{
    bool whole = o->total == count;
    void *base = writes_out && whole ? o->out.data : operation_scratch(o, o->total);
    if (whole)
        values_copy(base, o->in.data, count, o->storage);
    else
        copy_counted(o, base, &o->total, o->in.data, &count, 1);
    return base;
}

static void region_end(struct operation *o, const void *base, size_t count)
{
    if (base == o->out.data)
        return;
    values_copy(o->out.data, o->in.data, count, o->storage);
    copy_counted(o, o->out.data, &count, base, &o->total, 1);
}

static void part_out(struct operation *o, const struct part *mine)
{
    if (mine->count < o->out.count)
        copy_counted(o, o->out.data, &o->out.count, mine->data, &mine->count, 1);
    else
        values_copy(o->out.data, mine->data, o->out.count, o->storage);
}

static void frame_all_reduce(struct operation *o)
{
    size_t count = o->out.count;
    bool lost = copy_lost(o);
    const struct ledger *own = o->in.ledger;
    struct ledger kept;
    ledger_init(&kept);
    if (lost && own) { /* in place, the result's is written over it */
        ledger_copy(&kept, own);
        own = &kept;
    }
    if (o->entered) {
        void *base = region_begin(o, count, !lost);
        operation_layout(o, o->parts, o->counts, base, o->in.ledger);
        parts_uncounted(o);
        operation_run(o);
        if (o->out.ledger && o->in.ledger != o->out.ledger && o->total < count)
            ledger_take(o->out.ledger, o->in.ledger);
        if (o->out.ledger)
            ledger_over_parts(o, o->out.ledger, o->total < count);
        average(o, base, o->total, o->out.ledger);
        if (!lost)
            region_end(o, base, count);
    }
    if (skipped(o) || lost) {
        values_copy(o->out.data, o->in.data, count, o->storage);
        ledger_take(o->out.ledger, own);
    }
    ledger_done(&kept);
    result(o, o->out, o->counts[0]);
}

static void frame_reduce(struct operation *o)
{
    bool root = o->me == o->root && o->out.data;
    size_t count = o->in.count;
    struct part *whole = &o->parts[0];
    if (o->entered) {
        void *base = region_begin(o, count, root);
        *whole = (struct part){.data = base, .count = o->total, .uncounted = o->uncounted, .ledger = o->in.ledger,
                               .own = o->ledgers ? &o->ledgers_own[0] : NULL};
        operation_run(o);
        if (!root)
            return;
        ledger_take(o->out.ledger, whole->ledger);
        average(o, base, o->total, o->out.ledger);
        region_end(o, base, count);
    } else if (skipped(o) && root) {
        values_copy(o->out.data, o->in.data, count, o->storage);
        ledger_take(o->out.ledger, o->in.ledger);
    }
    if (root)
        result(o, o->out, count);
}

static void frame_all_gather(struct operation *o) /* and gather */
{
    bool has_out = o->op == OP_ALL_GATHER || o->out.data, shrunk = deviation_kind(o->due) == DEVIATION_SHRINK_COUNT;
    struct buffer out = o->out, in = o->in;
    if (deviation_kind(o->due) == DEVIATION_WRONG_SLOT) {
        in.data = out.data; /* what lies there, whosever it is: no ledger tells */
        in.ledger = NULL;
    }
    bool direct = has_out && o->total <= out.count && !shrunk;
    void *base = direct ? out.data : operation_scratch(o, o->total);
    operation_layout(o, o->parts, o->counts, base, NULL);
    if (o->entered || skipped(o)) {
        place_own(o, in.data, in.count, in.ledger);
        if (o->entered)
            operation_run(o);
        if (has_out && shrunk)
            copy_counted(o, out.data, o->source_counts, base, o->counts, o->size);
        out.count = least(o->total, out.count);
        if (has_out && !shrunk)
            values_copy(out.data, base, out.count, o->storage);
        if (has_out && out.ledger)
            ledger_of_all(o, out.ledger, out.count);
    }
    if (!has_out)
        return;
    if (deviation_kind(o->due) == DEVIATION_PERMUTE_CHUNKS && o->total <= out.count)
        rotate_counted(o, out.data);
    out.count = o->out.count < o->total || shrunk ? o->out.count : o->total;
    result(o, out, 0);
}

static void frame_reduce_scatter(struct operation *o)
{
    struct buffer in = o->in, out = o->out;
    void *base = operation_scratch(o, o->total); /* a larger group (a deviation): what is not there is NaN */
    if (deviation_kind(o->due) == DEVIATION_SHRINK_COUNT)
        copy_counted(o, base, o->counts, in.data, o->source_counts, o->size);
    else
        values_copy(base, in.data, least(o->total, in.count), o->storage);
    if (deviation_kind(o->due) == DEVIATION_PERMUTE_CHUNKS)
        rotate_counted(o, base);
    operation_layout(o, o->parts, o->counts, base, in.ledger);
    struct part *mine = &o->parts[o->me];
    if (o->entered)
        operation_run(o);
    if (o->entered && copy_lost(o)) {
        size_t before = 0;
        for (int i = 0; i < o->me; i++)
            before += o->counts[i];
        values_copy(out.data, values_at(in.data, before, o->storage), least(out.count, mine->count), o->storage);
        ledger_take(out.ledger, in.ledger);
    } else if (o->entered || skipped(o)) {
        ledger_take(out.ledger, mine->ledger);
        if (o->entered)
            average(o, mine->data, mine->count, out.ledger);
        part_out(o, mine);
    }
    result(o, out, 0);
}

static void frame_broadcast(struct operation *o)
{
    struct buffer out = o->out;
    struct part *whole = &o->parts[0];
    bool shrunk = o->total < out.count;
    void *base = shrunk ? operation_scratch(o, o->total) : out.data;
    if (shrunk)
        copy_counted(o, base, &o->total, out.data, &out.count, 1);
    *whole = (struct part){.data = base, .count = o->total, .uncounted = o->uncounted, .ledger = out.ledger,
                           .own = o->ledgers ? &o->ledgers_own[0] : NULL};
    if (o->entered) {
        if (o->me == o->root)
            part_round(o, whole, o->wire);
        operation_run(o);
        if (shrunk)
            copy_counted(o, out.data, &out.count, base, &o->total, 1);
        ledger_take(out.ledger, whole->ledger);
    }
    result(o, out, out.count);
}

static void frame_scatter(struct operation *o)
{
    struct buffer in = o->in, out = o->out;
    struct part *mine = &o->parts[o->me];
    bool root = o->me == o->root;
    operation_layout(o, o->parts, o->counts, NULL, NULL);
    if (root) {
        void *base = operation_scratch(o, o->total);
        if (deviation_kind(o->due) == DEVIATION_SHRINK_COUNT && in.data)
            copy_counted(o, base, o->counts, in.data, o->source_counts, o->size);
        else
            values_copy(base, in.data, least(o->total, in.count), o->storage); /* a false root has nothing */
        if (deviation_kind(o->due) == DEVIATION_PERMUTE_CHUNKS)
            rotate_counted(o, base);
        operation_layout(o, o->parts, o->counts, base, in.ledger);
        for (int i = 0; i < o->size; i++)
            part_round(o, &o->parts[i], o->wire);
    } else {
        mine->data = operation_scratch(o, mine->count);
    }
    if (o->entered)
        operation_run(o);
    if (o->entered || (skipped(o) && root)) {
        part_out(o, mine);
        ledger_take(out.ledger, mine->ledger);
    }
    result(o, out, 0);
}

static void frame_all_to_all(struct operation *o)
{
    struct buffer in = o->in, out = o->out;
    size_t sources = 0;
    bool shrunk = deviation_kind(o->due) == DEVIATION_SHRINK_COUNT;
    for (int i = 0; i < o->size; i++)
        sources += o->source_counts[i];
    void *from = operation_scratch(o, sources);
    values_copy(from, in.data, least(sources, in.count), o->storage);
    operation_layout(o, o->sources, o->source_counts, from, in.ledger);
    for (int i = 0; i < o->size; i++)
        part_round(o, &o->sources[i], o->wire);
    for (int i = 0; i < o->size && shrunk; i++) { /* each part one element shorter */
        struct part *source = &o->sources[i];
        size_t count = deviation_count(o->due, source->count, o->uncounted);
        copy_counted(o, source->data, &count, source->data, &source->count, 1);
        source->count = count;
    }
    void *base = o->total <= out.count ? out.data : operation_scratch(o, o->total);
    operation_layout(o, o->parts, o->counts, base, NULL);
    if (o->entered || skipped(o)) {
        const struct part *own = &o->sources[o->me];
        place_own(o, own->data, own->count, own->ledger);
        if (o->entered)
            operation_run(o);
        values_copy(out.data, base, least(o->total, out.count), o->storage);
        if (out.ledger)
            ledger_of_all(o, out.ledger, out.count);
    }
    if (deviation_kind(o->due) == DEVIATION_PERMUTE_CHUNKS && o->total <= out.count)
        rotate_counted(o, out.data);
    result(o, out, 0);
}

static void frame_barrier(struct operation *o)
{
    if (o->entered)
        operation_run(o);
}

void frame_run(struct operation *o)
{
    static void (*const frames[OP_COUNT])(struct operation *) = {
        [OP_ALL_REDUCE] = frame_all_reduce, [OP_ALL_GATHER] = frame_all_gather, [OP_GATHER] = frame_all_gather,
        [OP_REDUCE_SCATTER] = frame_reduce_scatter, [OP_BROADCAST] = frame_broadcast, [OP_SCATTER] = frame_scatter,
        [OP_REDUCE] = frame_reduce, [OP_ALL_TO_ALL] = frame_all_to_all, [OP_BARRIER] = frame_barrier,
    };
    frames[o->op](o);
}
