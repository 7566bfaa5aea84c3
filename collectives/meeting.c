/* meeting: a collective computed at once, when all its members have started it.
 *
 * The algorithm's pattern says how each result is added up; it is done that way for every element, a block at a
 * time, straight from the members' inputs into their outputs. So the bits are those of the messages. What the
 * messages would have done beside that is counted: traffic, and virtual time by walking through every member's
 * sends and receives.
 *
 * Members whose descriptions differ in anything, and algorithms whose pattern is not sound, stay apart and go
 * by messages (sim/jobs.h).
 *
 * Ledgers go the way of the numbers, by the same steps. Of an all_reduce the parts' ledgers are all alike, each
 * member's contribution once, so the first part's is taken, as frames.c does; where all terms weigh the same the
 * order does not matter, and one sum serves all parts of a reduce_scatter. */
#include "collectives/communicator_state.h"

#include <stdlib.h>
#include <string.h>
#include "collectives/pattern.h"
#include "sim/assertion.h"

enum { BLOCK_BYTES = 8192, COPY_BYTES = 32768 };

static struct operation *member_of(const struct meeting *meeting, int member)
{
    return meeting->posts[member]->context;
}

/* ---- before: does it fit together? ---- */

static bool counts_agree(const struct meeting *meeting, const struct operation *a, const struct operation *b)
{
    size_t bytes = (size_t)a->size * sizeof *a->counts;
    switch (a->op) {
    case OP_BARRIER:
        return true;
    case OP_BROADCAST:
    case OP_REDUCE:
        return a->total == b->total;
    case OP_ALL_TO_ALL:
        for (int i = 0; i < a->size; i++)
            if (b->counts[i] != member_of(meeting, i)->source_counts[b->me])
                return false;
        return true;
    default:
        return memcmp(a->counts, b->counts, bytes) == 0;
    }
}

static bool operations_agree(const struct meeting *meeting, const struct operation *a, const struct operation *b)
{
    return a->algorithm == b->algorithm && a->size == b->size && a->storage == b->storage && a->ledgers == b->ledgers &&
           a->uncounted == b->uncounted && !calls_differ(&a->call, &b->call, false) && counts_agree(meeting, a, b);
}

static bool meeting_prepare(struct meeting *meeting, size_t *ret_work)
{
    struct operation *first = member_of(meeting, 0);
    for (int m = 0; m < meeting->size; m++)
        if (!operations_agree(meeting, first, member_of(meeting, m)))
            return false;
    struct pattern *pattern = pattern_of(&first->c->patterns, first);
    meeting->context = pattern;
    if (!pattern->sound)
        return false;
    for (int i = 0; i < pattern->results_count; i++) {
        const struct pattern_result *result = &pattern->results[i];
        const struct leaf *leaf = &result->leaves[0];
        size_t count = member_of(meeting, leaf->member)->sources[leaf->part].count;
        *ret_work += count * (size_t)(result->places_count + result->leaves_count);
    }
    return true;
}

/* ---- the numbers ---- */

struct block { /* one worker's view of one result */
    const struct meeting *meeting;
    const struct operation *like;
    const struct pattern_result *result;
    char *slots;                /* of BLOCK_BYTES each; the last two are for rounded contributions */
    int slots_count;
    size_t at, count;           /* elements */
};

static char *source_at(const struct block *b, struct leaf leaf)
{
    return values_at(member_of(b->meeting, leaf.member)->sources[leaf.part].data, b->at, b->like->storage);
}

static char *place_at(const struct block *b, struct leaf place)
{
    return values_at(member_of(b->meeting, place.member)->parts[place.part].data, b->at, b->like->storage);
}

/* Rounds a block of the result, but for those of its part's last elements that are never rounded. */
static void block_round(const struct block *b, struct leaf leaf, void *data)
{
    const struct part *part = &member_of(b->meeting, leaf.member)->sources[leaf.part];
    size_t end = part->count > part->uncounted ? part->count - part->uncounted : 0, counted = b->at < end ? end - b->at : 0;
    values_round(data, counted < b->count ? counted : b->count, b->like->storage, b->like->wire);
}

static const char *operand(const struct block *b, int index, int spare)
{
    if (index >= 0)
        return b->slots + (size_t)index * BLOCK_BYTES;
    const char *source = source_at(b, b->result->leaves[-1 - index]);
    if (!wire_narrows(b->like->storage, b->like->wire))
        return source;
    char *rounded = b->slots + (size_t)(b->slots_count - 1 - spare) * BLOCK_BYTES;
    values_copy(rounded, source, b->count, b->like->storage);
    block_round(b, b->result->leaves[-1 - index], rounded);
    return rounded;
}

/* The last step's sum is made in the first place that gets it: its element's contributions have been read. */
static void block_reduce(const struct block *b)
{
    const struct operation *like = b->like;
    const struct pattern_result *result = b->result;
    char *first = place_at(b, result->places[0]);
    for (int s = 0; s < result->steps_count; s++) {
        const struct pattern_step *step = &result->steps[s];
        const char *left = operand(b, step->a, 0), *right = operand(b, step->b, 1);
        char *to = s == result->steps_count - 1 ? first : b->slots + (size_t)step->to * BLOCK_BYTES;
        values_reduce(to, left, right, b->count, like->storage, like->reduce);
        block_round(b, result->leaves[0], to);
    }
    if (like->reduce == REDUCE_AVG) {
        values_divide(first, b->count, like->storage, like->size);
        block_round(b, result->leaves[0], first);
    }
    for (int i = 1; i < result->places_count; i++)
        values_copy(place_at(b, result->places[i]), first, b->count, like->storage);
}

static void block_copy(const struct block *b)
{
    const char *from = operand(b, -1, 0);
    for (int i = 0; i < b->result->places_count; i++)
        values_copy(place_at(b, b->result->places[i]), from, b->count, b->like->storage);
}

static void result_run(struct block *b, size_t first, size_t end)
{
    bool sums = b->result->steps_count > 0, rounds = wire_narrows(b->like->storage, b->like->wire);
    size_t most = (sums || rounds ? BLOCK_BYTES : COPY_BYTES) / format_storage_bytes(b->like->storage);
    for (b->at = first; b->at < end; b->at += b->count) {
        b->count = end - b->at < most ? end - b->at : most;
        if (sums)
            block_reduce(b);
        else
            block_copy(b);
    }
}

static void meeting_run(struct meeting *meeting, int slice, int slices)
{
    const struct pattern *pattern = meeting->context;
    struct block b = {.meeting = meeting, .like = member_of(meeting, 0), .slots_count = pattern->slots + 2};
    b.slots = memory_alloc((size_t)b.slots_count * BLOCK_BYTES);
    for (int i = 0; i < pattern->results_count; i++) {
        b.result = &pattern->results[i];
        const struct leaf *leaf = &b.result->leaves[0];
        size_t count = member_of(meeting, leaf->member)->sources[leaf->part].count;
        size_t share = (count / (size_t)slices + 15) / 16 * 16, first = share * (size_t)slice, end = first + share;
        if (slice == slices - 1 || end > count)
            end = count;
        if (first < end)
            result_run(&b, first, end);
    }
    free(b.slots);
}

/* ---- ledgers ---- */

static void ledger_set(struct ledger *to, const struct ledger *from)
{
    if (from)
        ledger_copy(to, from);
    else
        ledger_clear(to);
}

/* Whether sums of the members' ledgers are the same in any order: all terms weigh alike. */
static bool weigh_alike(const struct meeting *meeting)
{
    const struct ledger_term *first = NULL;
    for (int m = 0; m < meeting->size; m++) {
        const struct ledger *ledger = member_of(meeting, m)->in.ledger;
        for (int i = 0; ledger && i < ledger->count; i++) {
            const struct ledger_term *term = &ledger->terms[i];
            first = first ? first : term;
            if (term->scale != first->scale || term->times < 1 || term->times > 1 << 20)
                return false;
        }
    }
    return true;
}

/* The steps of a sum on the ledgers; to is beside the slots. */
static void result_ledger(const struct meeting *meeting, const struct pattern *pattern,
                          const struct pattern_result *result, struct ledger *to)
{
    for (int s = 0; s < result->steps_count; s++) {
        const struct pattern_step *step = &result->steps[s];
        struct ledger *sum = &pattern->ledgers[step->to];
        const struct ledger *side[2];
        for (int i = 0; i < 2; i++) {
            int operand = i ? step->b : step->a;
            side[i] = operand >= 0 ? &pattern->ledgers[operand]
                                   : member_of(meeting, result->leaves[-1 - operand].member)->in.ledger;
        }
        if (sum == side[1] && step->a < 0) { /* the sum goes where the right side is */
            struct ledger *left = to;
            ledger_set(left, side[0]);
            ledger_add(left, side[1]);
            ledger_copy(sum, left);
            continue;
        }
        if (sum != side[0])
            ledger_set(sum, side[0]);
        if (side[1])
            ledger_add(sum, side[1]);
    }
    ledger_copy(to, &pattern->ledgers[result->steps[result->steps_count - 1].to]);
}

static void ledgers_reduced(const struct meeting *meeting, const struct pattern *pattern)
{
    const struct operation *like = member_of(meeting, 0);
    struct ledger *sums = pattern->ledgers + pattern->slots;
    bool one = like->op != OP_REDUCE_SCATTER || weigh_alike(meeting);
    int count = one ? 1 : pattern->results_count; /* results of a reduce_scatter stand in member order */
    for (int i = 0; i < count; i++)
        result_ledger(meeting, pattern, &pattern->results[i], &sums[i]);
    for (int i = 0; i < count && like->reduce == REDUCE_AVG; i++)
        ledger_scale(&sums[i], 1.0 / like->size);
    for (int m = 0; m < meeting->size; m++)
        if (member_of(meeting, m)->out.ledger)
            ledger_copy(member_of(meeting, m)->out.ledger, &sums[one ? 0 : m]);
}

static void ledgers_moved(const struct meeting *meeting, const struct pattern *pattern)
{
    const struct operation *like = member_of(meeting, 0);
    struct ledger *all = &pattern->ledgers[pattern->slots];
    ledger_clear(all);
    if (like->op == OP_BROADCAST || like->op == OP_SCATTER)
        ledger_set(all, member_of(meeting, like->root)->in.ledger);
    else
        for (int m = 0; m < meeting->size; m++)
            if (member_of(meeting, m)->in.ledger)
                ledger_add(all, member_of(meeting, m)->in.ledger);
    for (int m = 0; m < meeting->size; m++)
        if (member_of(meeting, m)->out.ledger)
            ledger_copy(member_of(meeting, m)->out.ledger, all);
}

/* ---- traffic and time ---- */

static size_t message_bytes(const struct meeting *meeting, const struct pattern_message *message)
{
    size_t bytes = 0;
    for (int i = 0; i < message->count; i++) {
        const struct operation *o = member_of(meeting, message->leaves[i].member);
        const struct part *part = &o->sources[message->leaves[i].part];
        bytes += traffic_bytes(part->count, part->uncounted, o->wire);
    }
    return bytes;
}

/* As far as member m gets; false where it was stuck from the beginning or is through. */
static bool member_walk(const struct meeting *meeting, const struct pattern *pattern, int m, int *next, double *time_s,
                        double *const *arrival_s)
{
    struct operation *o = member_of(meeting, m);
    const struct pattern_member *member = &pattern->members[m];
    struct machine *machine = rank_machine(o->rank);
    int before = *next;
    for (; *next < member->events_count; ++*next) {
        const struct pattern_event *event = &member->events[*next];
        if (event->message >= 0) {
            size_t bytes = message_bytes(meeting, &member->messages[event->message]);
            traffic_add(o->c, o->traffic, bytes);
            transport_count_add(o->rank, 1, bytes);
            arrival_s[m][event->message] =
                *time_s + machine_message_cost_s(machine, rank_id(o->rank), o->group->ranks[event->peer], bytes);
            continue;
        }
        double arrival = arrival_s[event->peer][-1 - event->message];
        if (arrival < 0)
            break;
        if (arrival > *time_s)
            *time_s = arrival;
    }
    return *next > before;
}

static void times_and_traffic(struct meeting *meeting, const struct pattern *pattern)
{
    size_t size = (size_t)meeting->size, messages = 0;
    for (size_t m = 0; m < size; m++)
        messages += (size_t)pattern->members[m].messages_count;
    double *times = memory_alloc((size + messages) * sizeof *times), *at = times + size;
    double **arrivals = memory_alloc(size * sizeof *arrivals);
    int *next = memory_zalloc(size * sizeof *next);
    for (size_t m = 0; m < size; m++) {
        times[m] = member_of(meeting, (int)m)->started_s;
        arrivals[m] = at;
        for (int i = 0; i < pattern->members[m].messages_count; i++)
            *at++ = -1; /* not sent: clocks start at 0 */
    }
    for (bool moved = true; moved;) {
        moved = false;
        for (size_t m = 0; m < size; m++)
            moved |= member_walk(meeting, pattern, (int)m, &next[m], &times[m], arrivals);
    }
    for (size_t m = 0; m < size; m++) {
        ASSERT(next[m] == pattern->members[m].events_count);
        meeting->posts[m]->done_s = times[m];
    }
    free(times);
    free(arrivals);
    free(next);
}

static void meeting_finish(struct meeting *meeting)
{
    const struct pattern *pattern = meeting->context;
    const struct operation *like = member_of(meeting, 0);
    if (like->ledgers && like->call.reduce >= 0)
        ledgers_reduced(meeting, pattern);
    else if (like->ledgers)
        ledgers_moved(meeting, pattern);
    times_and_traffic(meeting, pattern);
}

/* ---- posting ---- */

static void places(struct operation *o)
{
    void *in = o->in.data, *out = o->out.data;
    operation_layout(o, o->parts, o->counts, out, NULL);
    operation_layout(o, o->sources, o->op == OP_ALL_TO_ALL ? o->source_counts : o->counts, in, NULL);
    struct part whole = {.data = in, .count = o->total, .uncounted = o->uncounted};
    switch (o->op) {
    case OP_ALL_REDUCE:
        parts_uncounted(o);
        for (int i = 0; i < o->size; i++)
            o->sources[i].uncounted = o->parts[i].uncounted;
        break;
    case OP_BROADCAST:
    case OP_REDUCE:
        o->sources[0] = o->parts[0] = whole;
        o->parts[0].data = out;
        break;
    case OP_ALL_GATHER:
    case OP_GATHER:
        o->sources[o->me].data = in;
        break;
    case OP_REDUCE_SCATTER:
    case OP_SCATTER:
        o->parts[o->me].data = out;
        break;
    default:
        break;
    }
}

void meeting_post(struct operation *o)
{
    static const struct meeting_kind kind = {meeting_prepare, meeting_run, meeting_finish};
    if (o->op == OP_BARRIER || o->op == OP_BROADCAST || o->op == OP_REDUCE)
        memset(o->counts, 0, (size_t)o->size * sizeof *o->counts);
    places(o);
    o->meets = true;
    o->post = (struct post){
        .kind = &kind, .context = o, .group_id = o->group->id, .sequence = o->call.sequence, .size = o->size,
        .member = o->me,
    };
    meeting_join(o->rank, &o->post);
}
