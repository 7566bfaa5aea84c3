/* pattern: see pattern.h. */
#include "collectives/pattern.h"

#include <stdlib.h>
#include <string.h>
#include "collectives/communicator_state.h"
#include "sim/assertion.h"

/* Marks are as wide as the fp32 that an algorithm believes to move. A leaf is member * size + part. */
typedef int32_t mark;
_Static_assert(sizeof(mark) == sizeof(float), "marks take the place of fp32");
enum { MARK_UNKNOWN = -1, MARK_SUM = 1 << 30, MARK_ARRIVED = 1 << 29, MARK_INDEX = MARK_ARRIVED - 1 };

struct sum { mark a, b; };
struct sent { int to; mark *marks; int count; };
struct expected { int from, number; };          /* the number-th message from there to here */
struct arrived { int to; struct expected of; int position; bool known; mark is; }; /* is: where known */
struct event { int peer, index; bool sends; };  /* index: of sent; else number */

struct recorded { /* of one member */
    struct sent *sent; int sent_count, sent_capacity;
    struct event *events; int events_count, events_capacity;
    int *expected_from;                          /* [size] */
    int *sent_first, *sent_order;                /* [size + 1], [sent_count]: sent, by whom it goes to */
    mark *finals;                                /* [size], by part */
};

struct recording {
    struct pattern *pattern;
    struct arena *scratch;
    int me;
    struct recorded *members;
    struct sum *sums; int sums_count, sums_capacity;
    struct arrived *arrived; int arrived_count, arrived_capacity;
    struct leaf *leaves; int leaves_count;       /* of the result at hand */
    struct pattern_step *steps; int steps_count;
    bool *slot_used;                             /* [size] */
    bool broken;
};

/* ---- the dry run ---- */

void recording_send(struct recording *r, int to, const void *marks, size_t count)
{
    struct recorded *m = &r->members[r->me];
    mark *copy = arena_alloc(r->scratch, (count + 1) * sizeof *copy);
    if (count > 0)
        memcpy(copy, marks, count * sizeof *copy);
    GROW(m->events, m->events_count, m->events_capacity);
    m->events[m->events_count++] = (struct event){to, m->sent_count, true};
    GROW(m->sent, m->sent_count, m->sent_capacity);
    m->sent[m->sent_count++] = (struct sent){to, copy, (int)count};
}

struct transfer *recording_expect(struct recording *r, int from)
{
    struct expected *expected = arena_alloc(r->scratch, sizeof *expected);
    *expected = (struct expected){from, r->members[r->me].expected_from[from]++};
    return (struct transfer *)expected; /* opaque to the algorithm */
}

void *recording_arrive(struct recording *r, struct transfer *transfer, size_t count)
{
    const struct expected *expected = (const struct expected *)transfer;
    struct recorded *m = &r->members[r->me];
    mark *marks = arena_alloc(r->scratch, (count + 1) * sizeof *marks);
    GROW(m->events, m->events_count, m->events_capacity);
    m->events[m->events_count++] = (struct event){expected->from, expected->number, false};
    for (int i = 0; i < (int)count; i++) {
        GROW(r->arrived, r->arrived_count, r->arrived_capacity);
        marks[i] = MARK_ARRIVED | r->arrived_count;
        r->arrived[r->arrived_count++] = (struct arrived){.to = r->me, .of = *expected, .position = i};
    }
    return marks;
}

void recording_reduce(struct recording *r, void *to, const void *from, size_t count)
{
    mark *a = to;
    const mark *b = from;
    for (size_t i = 0; i < count; i++) {
        GROW(r->sums, r->sums_count, r->sums_capacity);
        r->sums[r->sums_count] = (struct sum){a[i], b[i]};
        a[i] = MARK_SUM | r->sums_count++;
    }
}

/* What an algorithm of this op finds in its parts (operation.h). */
static mark initial(enum collective_op op, int size, int root, int me, int part)
{
    bool mine = false;
    switch (op) {
    case OP_ALL_REDUCE: case OP_REDUCE_SCATTER: mine = true; break;
    case OP_REDUCE: mine = part == 0; break;
    case OP_ALL_GATHER: case OP_GATHER: case OP_ALL_TO_ALL: mine = part == me; break;
    case OP_SCATTER: mine = me == root; break;
    case OP_BROADCAST: mine = me == root && part == 0; break;
    default: break;
    }
    return mine ? me * size + part : MARK_UNKNOWN;
}

static void record_member(struct recording *r, struct operation *o, int me)
{
    int size = r->pattern->size;
    mark *parts = arena_alloc(r->scratch, 2 * (size_t)size * sizeof *parts), *sources = parts + size;
    r->me = o->me = me;
    for (int i = 0; i < size; i++) {
        parts[i] = initial(o->op, size, o->root, me, i);
        sources[i] = me * size + i;
        o->parts[i] = (struct part){.data = &parts[i], .count = 1};
        o->sources[i] = (struct part){.data = &sources[i], .count = 1};
    }
    o->algorithm->run(o);
    r->members[me].finals = parts;
}

/* ---- putting the members together ---- */

static void sent_sort(struct recording *r, struct recorded *m)
{
    int size = r->pattern->size;
    m->sent_first = arena_zalloc(r->scratch, (size_t)(size + 2) * sizeof(int));
    m->sent_order = arena_alloc(r->scratch, (size_t)(m->sent_count + 1) * sizeof(int));
    for (int i = 0; i < m->sent_count; i++)
        m->sent_first[m->sent[i].to + 2]++;
    for (int to = 0; to < size; to++)
        m->sent_first[to + 2] += m->sent_first[to + 1];
    for (int i = 0; i < m->sent_count; i++)
        m->sent_order[m->sent_first[m->sent[i].to + 1]++] = i;
}

static const struct sent *sent_by(const struct recording *r, struct expected of, int to, int *ret_index)
{
    const struct recorded *m = &r->members[of.from];
    int place = m->sent_first[to] + of.number;
    if (place >= m->sent_first[to + 1])
        return NULL;
    *ret_index = m->sent_order[place];
    return &m->sent[*ret_index];
}

static mark mark_sent(const struct recording *r, const struct arrived *arrived)
{
    int index;
    const struct sent *sent = sent_by(r, arrived->of, arrived->to, &index);
    return sent && arrived->position < sent->count ? sent->marks[arrived->position] : MARK_UNKNOWN;
}

/* What arrived is what was sent, or what that stands for. All on the way are told. */
static mark resolve(struct recording *r, mark value)
{
    mark is = value;
    for (int hops = 0; is != MARK_UNKNOWN && (is & MARK_ARRIVED); hops++) {
        const struct arrived *arrived = &r->arrived[is & MARK_INDEX];
        is = arrived->known ? arrived->is : hops > r->arrived_count ? MARK_UNKNOWN : mark_sent(r, arrived);
    }
    while (value != MARK_UNKNOWN && (value & MARK_ARRIVED) && !r->arrived[value & MARK_INDEX].known) {
        struct arrived *arrived = &r->arrived[value & MARK_INDEX];
        value = mark_sent(r, arrived);
        arrived->known = true;
        arrived->is = is;
    }
    return is;
}

/* The first contribution in it; its size is everybody's. */
static bool leaf_of(struct recording *r, mark value, struct leaf *ret_leaf)
{
    value = resolve(r, value);
    for (int depth = 0; value != MARK_UNKNOWN && (value & MARK_SUM); depth++) {
        if (depth > r->sums_count)
            return false;
        value = resolve(r, r->sums[value & MARK_INDEX].a);
    }
    if (value == MARK_UNKNOWN)
        return false;
    *ret_leaf = (struct leaf){value / r->pattern->size, value % r->pattern->size};
    return true;
}

static void *keep(struct pattern *p, const void *data, size_t bytes)
{
    void *copy = arena_alloc(p->arena, bytes + 1);
    if (bytes > 0)
        memcpy(copy, data, bytes);
    return copy;
}

static void keep_member(struct recording *r, int me)
{
    struct pattern *p = r->pattern;
    struct recorded *m = &r->members[me];
    struct pattern_member *to = &p->members[me];
    to->messages = arena_zalloc(p->arena, (size_t)(m->sent_count + 1) * sizeof *to->messages);
    to->events = arena_alloc(p->arena, (size_t)(m->events_count + 1) * sizeof *to->events);
    for (int i = 0; i < m->sent_count; i++) {
        struct pattern_message *message = &to->messages[to->messages_count++];
        message->to = m->sent[i].to;
        message->count = m->sent[i].count;
        message->leaves = arena_alloc(p->arena, (size_t)(message->count + 1) * sizeof *message->leaves);
        for (int j = 0; j < message->count; j++)
            r->broken |= !leaf_of(r, m->sent[i].marks[j], &message->leaves[j]);
    }
    for (int i = 0; i < m->events_count; i++) {
        const struct event *event = &m->events[i];
        int index = event->index;
        if (!event->sends && !sent_by(r, (struct expected){event->peer, event->index}, me, &index)) {
            r->broken = true;
            return;
        }
        to->events[to->events_count++] = (struct pattern_event){event->sends ? index : -1 - index, event->peer};
    }
}

/* As many messages are received as are sent. */
static bool all_received(const struct recording *r)
{
    int sent = 0, received = 0;
    for (int m = 0; m < r->pattern->size; m++)
        for (int i = 0; i < r->members[m].events_count; i++)
            *(r->members[m].events[i].sends ? &sent : &received) += 1;
    return sent == received;
}

/* ---- results ---- */

void pattern_wanted(enum collective_op op, int size, int root, int member, int *ret_first, int *ret_count)
{
    bool all = op == OP_ALL_REDUCE || op == OP_ALL_GATHER || op == OP_ALL_TO_ALL || (op == OP_GATHER && member == root);
    bool own = op == OP_REDUCE_SCATTER || op == OP_SCATTER;
    bool one = op == OP_BROADCAST || (op == OP_REDUCE && member == root);
    *ret_first = own ? member : 0;
    *ret_count = all ? size : own || one;
}

static int slot_new(struct recording *r)
{
    int slot = 0;
    while (slot < r->pattern->size - 1 && r->slot_used[slot])
        slot++;
    r->slot_used[slot] = true;
    if (slot >= r->pattern->slots)
        r->pattern->slots = slot + 1;
    return slot;
}

/* Steps for this value; the operand that holds it then. A sum goes where its left or its right was. */
static int emit(struct recording *r, mark value)
{
    int size = r->pattern->size;
    value = resolve(r, value);
    if (value == MARK_UNKNOWN || r->leaves_count == size || r->broken) {
        r->broken = true; /* nothing there, or more than every member once */
        return -1;
    }
    if (!(value & MARK_SUM)) {
        r->leaves[r->leaves_count] = (struct leaf){value / size, value % size};
        return -1 - r->leaves_count++;
    }
    int a = emit(r, r->sums[value & MARK_INDEX].a);
    if (r->broken)
        return -1;
    int b = emit(r, r->sums[value & MARK_INDEX].b);
    if (r->broken)
        return -1;
    int to = a >= 0 ? a : b >= 0 ? b : slot_new(r);
    if (b >= 0 && b != to)
        r->slot_used[b] = false;
    r->steps[r->steps_count++] = (struct pattern_step){to, a, b};
    return to;
}

static bool every_member_once(const struct recording *r)
{
    for (int i = 0; i < r->leaves_count; i++)
        for (int j = 0; j < i; j++)
            if (r->leaves[i].member == r->leaves[j].member || r->leaves[i].part != r->leaves[j].part)
                return false;
    return r->leaves_count == r->pattern->size;
}

static void result_add(struct recording *r, mark value, bool reduces)
{
    struct pattern *p = r->pattern;
    struct pattern_result *result = &p->results[p->results_count++];
    r->leaves_count = r->steps_count = 0;
    memset(r->slot_used, 0, (size_t)p->size * sizeof *r->slot_used);
    emit(r, value);
    if (r->broken || (reduces ? !every_member_once(r) : r->steps_count > 0)) {
        r->broken = true;
        return;
    }
    result->leaves = keep(p, r->leaves, (size_t)r->leaves_count * sizeof *r->leaves);
    result->leaves_count = r->leaves_count;
    result->steps = keep(p, r->steps, (size_t)r->steps_count * sizeof *r->steps);
    result->steps_count = r->steps_count;
}

/* Results by their marks; then a place for each member and part that wants one. */
static void results_collect(struct recording *r)
{
    struct pattern *p = r->pattern;
    enum collective_op op = p->algorithm->op;
    size_t size = (size_t)p->size;
    bool reduces = op == OP_ALL_REDUCE || op == OP_REDUCE_SCATTER || op == OP_REDUCE;
    int *index_of_sum = arena_zalloc(r->scratch, ((size_t)r->sums_count + 1) * sizeof(int)); /* + 1; 0: none yet */
    int *index_of_leaf = arena_zalloc(r->scratch, size * size * sizeof(int));
    p->results = arena_zalloc(p->arena, size * size * sizeof *p->results);
    for (int pass = 0; pass < 2 && !r->broken; pass++) { /* count, then fill */
        for (int m = 0; m < p->size; m++) {
            int first, count;
            pattern_wanted(op, p->size, p->root, m, &first, &count);
            for (int part = first; part < first + count && !r->broken; part++) {
                mark value = resolve(r, r->members[m].finals[part]);
                if (value == MARK_UNKNOWN) {
                    r->broken = true;
                    return;
                }
                int *index = value & MARK_SUM ? &index_of_sum[value & MARK_INDEX] : &index_of_leaf[value];
                if (!*index) {
                    result_add(r, value, reduces);
                    *index = p->results_count;
                }
                struct pattern_result *result = &p->results[*index - 1];
                if (pass == 1)
                    result->places[result->places_count] = (struct leaf){m, part};
                result->places_count++;
            }
        }
        for (int i = 0; i < p->results_count && pass == 0; i++) {
            struct pattern_result *result = &p->results[i];
            result->places = arena_alloc(p->arena, (size_t)result->places_count * sizeof *result->places);
            result->places_count = 0;
        }
    }
}

static void record(struct pattern *p, const struct operation *like)
{
    size_t size = (size_t)p->size;
    struct recording r = {.pattern = p, .scratch = arena_new("collectives.pattern", false)};
    struct operation dry = {
        .c = like->c, .op = like->op, .algorithm = like->algorithm, .size = p->size, .root = p->root,
        .storage = FORMAT_FP32, .wire = FORMAT_FP32, .hop = FORMAT_FP32, .call = {.reduce = -1}, .recording = &r,
    };
    struct operation *o = memory_zalloc(sizeof *o);
    *o = dry;
    operation_reserve(o, p->size);
    r.members = arena_zalloc(r.scratch, size * sizeof *r.members);
    r.leaves = arena_alloc(r.scratch, size * sizeof *r.leaves);
    r.steps = arena_alloc(r.scratch, size * sizeof *r.steps);
    r.slot_used = arena_alloc(r.scratch, size * sizeof *r.slot_used);
    for (int m = 0; m < p->size; m++) {
        r.members[m].expected_from = arena_zalloc(r.scratch, size * sizeof(int));
        record_member(&r, o, m);
    }
    for (int m = 0; m < p->size; m++)
        sent_sort(&r, &r.members[m]);
    for (int m = 0; m < p->size && !r.broken; m++)
        keep_member(&r, m);
    if (!r.broken)
        results_collect(&r);
    p->sound = !r.broken && all_received(&r);
    for (int m = 0; m < p->size; m++) {
        free(r.members[m].sent);
        free(r.members[m].events);
    }
    free(r.sums);
    free(r.arrived);
    arena_free(r.scratch);
    operations_free(o);
}

struct pattern *pattern_of(struct pattern **list, const struct operation *like)
{
    for (struct pattern *p = *list; p; p = p->next)
        if (p->algorithm == like->algorithm && p->size == like->size && p->root == like->root)
            return p;
    struct pattern *p = memory_zalloc(sizeof *p);
    *p = (struct pattern){.next = *list, .algorithm = like->algorithm, .size = like->size, .root = like->root,
                          .arena = arena_new("collectives.pattern", false)};
    *list = p;
    p->members = arena_zalloc(p->arena, (size_t)p->size * sizeof *p->members);
    record(p, like);
    p->ledgers = arena_zalloc(p->arena, (size_t)(p->slots + p->size) * sizeof *p->ledgers);
    return p;
}

void patterns_free(struct pattern *list)
{
    while (list) {
        struct pattern *next = list->next;
        for (int i = 0; i < list->slots + list->size; i++)
            ledger_done(&list->ledgers[i]);
        arena_free(list->arena);
        free(list);
        list = next;
    }
}

static double operand_of(const struct pattern_result *result, const double *contributions, const double *slots, int index)
{
    return index >= 0 ? slots[index] : contributions[result->leaves[-1 - index].member];
}

int all_reduce_sums(const struct communicator *c, const char *name, const double *contributions, int size, double *ret_sums)
{
    struct pattern *list = NULL;
    const struct algorithm *algorithm = algorithm_known(c, OP_ALL_REDUCE, name);
    if (!algorithm) return 0;
    const struct pattern *p = pattern_of(&list, &(struct operation){.op = OP_ALL_REDUCE, .algorithm = algorithm, .size = size});
    double *slots = memory_zalloc((size_t)(p->slots + 1) * sizeof *slots);
    int count = 0;
    for (int i = 0; i < p->results_count && p->sound; i++) {
        const struct pattern_result *result = &p->results[i];
        double sum = result->leaves_count > 0 ? contributions[result->leaves[0].member] : 0;
        for (int s = 0; s < result->steps_count; s++) {
            const struct pattern_step *step = &result->steps[s];
            sum = operand_of(result, contributions, slots, step->a) + operand_of(result, contributions, slots, step->b);
            slots[step->to] = sum;
        }
        bool known = false;
        for (int k = 0; k < count; k++) known = known || ret_sums[k] == sum;
        if (!known && count < size) ret_sums[count++] = sum;
    }
    free(slots);
    patterns_free(list);
    return count;
}
