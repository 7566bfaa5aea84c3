/* deviations: what goes wrong at a communication site, as changes to one call's data or control.
 *
 * A call asks once which deviation is due (deviation_due) and then passes its arguments and its result
 * through the functions below; without one they are the identity. No ledger is written by hand: it
 * changes because the movement changes, or together with the numbers in the same function (scale,
 * average, stale).
 *
 * Point to point: what changes the payload (stale, scale, corrupt, permute-chunks, duplicate) happens at
 * the sender. A receiver does the same only where the fault names it, by its rank or its stage, and does
 * not name the sender by rank as well; so a fault that names no rank is not applied twice. */
#include "collectives/communicator_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "sim/assertion.h"

static const struct deviation deviations[] = {
#define DEVIATION(id, name, needs, what) {name, SITE_COMMUNICATION, needs, what},
#include "collectives/deviations.def"
#undef DEVIATION
};

int communication_deviation_count(void)
{
    return COMMUNICATION_DEVIATION_COUNT;
}

const struct deviation *communication_deviation(int i)
{
    ASSERT(i >= 0 && i < COMMUNICATION_DEVIATION_COUNT);
    return &deviations[i];
}

enum communication_deviation deviation_kind(const struct armed *due)
{
    if (due)
        for (int i = 0; i < COMMUNICATION_DEVIATION_COUNT; i++)
            if (strcmp(deviations[i].name, due->deviation->name) == 0)
                return (enum communication_deviation)i;
    return DEVIATION_NONE;
}

/* The argument as an index, or `otherwise` where it is none. */
static int argument_index(const struct armed *due, int otherwise)
{
    if (due->text[0] < '0' || due->text[0] > '9')
        return otherwise;
    return (int)(strtoul(due->text, NULL, 10) & 0x7fffffff);
}

static bool listed(const struct at_list *list, int value)
{
    for (int i = 0; i < list->count; i++)
        if (list->values[i] == value)
            return true;
    return list->count == 0;
}

static bool acts_at_receiver(const struct armed *armed, enum communication_deviation kind, int sender)
{
    switch (kind) {
    case DEVIATION_STALE:
    case DEVIATION_SCALE:
    case DEVIATION_CORRUPT:
    case DEVIATION_PERMUTE_CHUNKS:
        return (armed->rank.count > 0 && !listed(&armed->rank, sender)) ||
               (armed->rank.count == 0 && armed->stage.count > 0);
    case DEVIATION_DUPLICATE:
        return false;
    default:
        return true;
    }
}

const struct armed *deviation_due(struct communicator *c, const struct site *site, struct where where,
                                  enum collective_op op, int peer, const struct group *g)
{
    struct site_plan *plan = rank_plan(c->rank);
    const struct armed *armed = site_peek(plan, site, where);
    enum communication_deviation kind = deviation_kind(armed);
    if (kind == DEVIATION_NONE || kind == DEVIATION_SWAP_ORDER)
        return NULL; /* not ours to do or to count */
    if (op == OP_RECEIVE && !acts_at_receiver(armed, kind, peer))
        return NULL;
    if (kind == DEVIATION_DROP_PEER && argument_index(armed, g->size - 1) % g->size != g->me)
        return NULL;
    if (kind == DEVIATION_LOSE_LINK && argument_index(armed, g->me + g->size - 1) % g->size == g->me)
        return NULL;
    if (kind == DEVIATION_COPY_LOST && op != OP_ALL_REDUCE && op != OP_REDUCE_SCATTER)
        return NULL;
    if (kind == DEVIATION_WRONG_SLOT && op != OP_ALL_GATHER)
        return NULL;
    if ((kind == DEVIATION_LATE && (op == OP_SEND || op == OP_RING_SHIFT)) ||
        (kind == DEVIATION_REUSE_BUFFER && (op == OP_RECEIVE || op == OP_RING_SHIFT)) ||
        (kind == DEVIATION_ALIAS && (op == OP_SEND || op == OP_RECEIVE || op == OP_RING_SHIFT)))
        return NULL;
    return site_pass(plan, site, where);
}

/* ---- arguments of the call ---- */

struct group *deviation_group(struct communicator *c, const struct armed *due, struct group *g)
{
    if (deviation_kind(due) != DEVIATION_WRONG_GROUP)
        return g;
    struct group *other = communicator_group(c, due->text[0] ? due->text : "world");
    return other ? other : g;
}

enum reduce_op deviation_reduce(const struct armed *due, enum reduce_op op)
{
    if (deviation_kind(due) != DEVIATION_WRONG_OP)
        return op;
    for (int i = 0; i < REDUCE_COUNT; i++)
        if (strcmp(due->text, reduce_op_names[i]) == 0)
            return (enum reduce_op)i;
    return op == REDUCE_SUM ? REDUCE_AVG : REDUCE_SUM;
}

int deviation_root(const struct armed *due, int root, int size)
{
    root %= size;
    return deviation_kind(due) == DEVIATION_WRONG_ROOT ? argument_index(due, root + 1) % size : root;
}

int deviation_peer(const struct armed *due, int peer, int me, int size)
{
    if (deviation_kind(due) != DEVIATION_WRONG_PEER)
        return peer;
    int next = (peer + 1) % size;
    if (next == me && size > 2)
        next = (next + 1) % size;
    return argument_index(due, next) % size;
}

enum format deviation_wire(const struct armed *due, enum format wire)
{
    enum format other;
    if (deviation_kind(due) == DEVIATION_WRONG_FORMAT && format_parse(due->text, &other))
        return other;
    return wire;
}

enum format deviation_hop(const struct armed *due, enum format wire)
{
    enum format hop;
    if (deviation_kind(due) == DEVIATION_ROUND_HOPS)
        return format_parse(due->text, &hop) && wire_narrows(wire, hop) ? hop : FORMAT_BF16;
    return wire;
}

size_t deviation_count(const struct armed *due, size_t count, size_t uncounted)
{
    return deviation_kind(due) == DEVIATION_SHRINK_COUNT && count > uncounted ? count - 1 : count;
}

int deviation_divisions(const struct armed *due)
{
    enum communication_deviation kind = deviation_kind(due);
    return kind == DEVIATION_AVERAGE_TWICE ? 2 : kind != DEVIATION_AVERAGE_FIRST;
}

void deviation_arrived(const struct operation *o, int source, const struct part *part)
{
    if (deviation_kind(o->due) != DEVIATION_LOSE_LINK || part->count <= part->uncounted)
        return;
    int lost = argument_index(o->due, o->me + o->size - 1) % o->size;
    if (o->group->ranks[lost] == source)
        memset(part->data, 0, (part->count - part->uncounted) * format_storage_bytes(o->storage));
}

/* ---- the contribution to a reduction ---- */

static void contribute_twice(struct operation *o, struct part *part)
{
    struct part once = *part;
    once.data = operation_scratch(o, once.count);
    values_copy(once.data, part->data, once.count, o->storage);
    part_reduce(o, part, &once);
}

/* What changes nothing in the sum, and of nobody. */
static void contribute_nothing(struct operation *o, struct part *part)
{
    for (size_t i = 0; i < part->count; i++)
        format_set(part->data, i, o->storage, o->reduce == REDUCE_MAX ? -(double)INFINITY : 0.0);
    part->ledger = NULL;
}

static void contribute_scaled(struct operation *o, struct part *part, double factor)
{
    for (size_t i = 0; i < part->count; i++)
        format_set(part->data, i, o->storage, format_get(part->data, i, o->storage) * factor);
    part_round(o, part, o->wire);
    if (!part->own || !part->ledger)
        return;
    ledger_copy(part->own, part->ledger);
    ledger_scale(part->own, factor);
    part->ledger = part->own;
}

void deviation_contribution(struct operation *o, struct part *part)
{
    switch (deviation_kind(o->due)) {
    case DEVIATION_DUPLICATE:
        contribute_twice(o, part);
        break;
    case DEVIATION_DROP_PEER:
        contribute_nothing(o, part);
        break;
    case DEVIATION_PREMULTIPLY:
        contribute_scaled(o, part, o->due->value);
        break;
    case DEVIATION_AVERAGE_FIRST:
        if (o->reduce == REDUCE_AVG)
            contribute_scaled(o, part, format_round(o->wire, format_round(o->storage, 1.0 / o->size)));
        break;
    default:
        break;
    }
}

/* ---- the result ---- */

void values_rotate(struct communicator *c, void *data, size_t count, size_t first, enum format storage)
{
    if (count == 0 || first == 0 || first >= count)
        return;
    size_t width = format_storage_bytes(storage);
    struct arena_mark mark = arena_mark(c->scratch);
    void *front = arena_alloc(c->scratch, first * width);
    memcpy(front, data, first * width);
    memmove(data, values_at(data, first, storage), (count - first) * width);
    memcpy(values_at(data, count - first, storage), front, first * width);
    arena_release(c->scratch, mark);
}

static void result_scale(struct buffer result, double factor)
{
    for (size_t i = 0; i < result.count; i++)
        format_set(result.data, i, result.storage, format_get(result.data, i, result.storage) * factor);
    if (result.ledger)
        ledger_scale(result.ledger, factor);
}

/* Whether this rank may have to give an old result at this site, at whatever step. */
static bool stale_armed(const struct communicator *c, const struct site *site)
{
    const struct site_plan *plan = rank_plan(c->rank);
    for (int i = 0; plan && i < plan->armed_count; i++) {
        const struct armed *armed = &plan->armed[i];
        if (armed->site == site && listed(&armed->rank, rank_id(c->rank)) &&
            deviation_kind(armed) == DEVIATION_STALE)
            return true;
    }
    return false;
}

bool deviation_watches(const struct communicator *c, const struct site *site)
{
    return stale_armed(c, site);
}

static struct saved *saved_find(struct communicator *c, const struct site *site, struct where where,
                                enum collective_op op)
{
    const char *param = where.param ? where.param : "";
    for (int i = 0; i < c->saved_count; i++) {
        struct saved *saved = &c->saved[i];
        if (saved->site == site && saved->op == op && saved->layer == where.layer && strcmp(saved->param, param) == 0)
            return saved;
    }
    GROW(c->saved, c->saved_count, c->saved_capacity);
    struct saved *saved = &c->saved[c->saved_count++];
    *saved = (struct saved){.site = site, .op = op, .layer = where.layer, .param = memory_strdup(param)};
    ledger_init(&saved->latest.ledger);
    ledger_init(&saved->earlier.ledger);
    return saved;
}

void saved_free(struct saved *saved, int count)
{
    for (int i = 0; i < count; i++) {
        free(saved[i].param);
        free(saved[i].latest.data);
        free(saved[i].earlier.data);
        ledger_done(&saved[i].latest.ledger);
        ledger_done(&saved[i].earlier.ledger);
    }
}

static void saved_store(struct saved_result *slot, int step, struct buffer result)
{
    size_t bytes = result.count * format_storage_bytes(result.storage);
    if (bytes > slot->capacity) {
        free(slot->data);
        slot->data = memory_alloc(bytes);
        slot->capacity = bytes;
    }
    if (bytes > 0)
        memcpy(slot->data, result.data, bytes);
    slot->bytes = bytes;
    slot->step = step;
    slot->set = true;
    ledger_clear(&slot->ledger);
    if (result.ledger)
        ledger_copy(&slot->ledger, result.ledger);
}

/* Keeps the true result; replaces it by the last one of an earlier step where that is asked for. */
static void result_stale(struct communicator *c, const struct site *site, struct where where, enum collective_op op,
                         bool due, struct buffer result)
{
    struct saved *saved = saved_find(c, site, where, op);
    if (saved->latest.set && saved->latest.step < where.step) {
        struct saved_result latest = saved->latest;
        saved->latest = saved->earlier;
        saved->earlier = latest;
    }
    saved_store(&saved->latest, where.step, result);
    if (!due || !saved->earlier.set)
        return;
    size_t bytes = result.count * format_storage_bytes(result.storage);
    bytes = saved->earlier.bytes < bytes ? saved->earlier.bytes : bytes;
    if (bytes > 0)
        memcpy(result.data, saved->earlier.data, bytes);
    if (result.ledger)
        ledger_copy(result.ledger, &saved->earlier.ledger);
}

void deviation_result(struct communicator *c, const struct site *site, struct where where, enum collective_op op,
                      const struct armed *due, struct buffer result, size_t uncounted, size_t first_part)
{
    size_t counted = result.count > uncounted ? result.count - uncounted : 0;
    enum communication_deviation kind = deviation_kind(due);
    if (stale_armed(c, site))
        result_stale(c, site, where, op, kind == DEVIATION_STALE, result);
    switch (kind) {
    case DEVIATION_SCALE:
        result_scale(result, due->value);
        break;
    case DEVIATION_CORRUPT:
        if (counted > 0)
            format_set(result.data, (size_t)argument_index(due, 0) % counted, result.storage, NAN);
        break;
    case DEVIATION_EDGES:
        if (counted > 1) {
            format_set(result.data, 0, result.storage, format_get(result.data, 1, result.storage));
            format_set(result.data, counted - 1, result.storage, format_get(result.data, counted - 2, result.storage));
        }
        break;
    case DEVIATION_PERMUTE_CHUNKS:
        if (first_part > 0)
            values_rotate(c, result.data, counted, first_part < counted ? first_part : counted / 2, result.storage);
        break;
    default:
        break;
    }
}
