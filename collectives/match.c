/* match: the members' logs of calls, side by side.
 *
 * Two calls of one number in one group agree if op, count, format, reduction, root and site agree. Where
 * they don't, the majority is right (the class with most members; of equal ones that of the lowest rank)
 * and the lowest rank of the rest deviates. A rank that lost or gained a call makes right calls under
 * wrong numbers, and the first that differs may come long after; so the report goes back to the first
 * call of the group at which that same rank stood alone at another step, layer or micro-batch.
 * Those three alone are no mismatch: members of one group may stand at different layers (tied weights).
 *
 * Point to point, two sides differ and neither is a majority: the side whose (site, count, format) is
 * rarer in the whole run deviates; the higher rank where they are equally rare. */
#include "collectives/communicator_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "collectives/match.h"
#include "sim/assertion.h"

bool calls_differ(const struct call *a, const struct call *b, bool point_to_point)
{
    if (a->count != b->count || a->format != b->format)
        return true;
    return !point_to_point && (strcmp(a->op, b->op) != 0 || a->reduce != b->reduce || a->root != b->root ||
                               a->sequence != b->sequence);
}

void difference_note(struct communicator *c, const struct call *mine, const struct message *message,
                     struct where where, bool point_to_point)
{
    if (c->differences_count == DIFFERENCES_MAX)
        return;
    if (!c->differences)
        c->differences = memory_alloc(DIFFERENCES_MAX * sizeof *c->differences);
    c->differences[c->differences_count++] = (struct difference){
        .mine = *mine, .theirs = message->call, .receiver = message->destination, .sender = message->source,
        .where = where, .point_to_point = point_to_point,
    };
}

/* "all_reduce(sum, 64 x fp32)"; a reduction of -1 and a root of -1 are left out. */
static void call_text(char *text, size_t size, const char *op, int reduce, uint64_t count, enum format format, int root)
{
    char first[16] = "", last[32] = "";
    if (reduce >= 0)
        snprintf(first, sizeof first, "%s, ", reduce_op_names[reduce]);
    if (root >= 0)
        snprintf(last, sizeof last, ", %s %d", strcmp(op, "ring_shift") == 0 ? "shift" : "root", root);
    snprintf(text, size, "%s(%s%" PRIu64 " x %s%s)", op, first, count, format_traits[format].name, last);
}

/* ---- logs of one group ---- */

struct member_log { int rank; int count; const struct call_record **at; };
struct group_log { const struct group *group; struct member_log *members; int size; int longest; };

static void group_log_read(struct group_log *log, struct communicator *const *communicators, int ranks,
                           const struct group *group)
{
    *log = (struct group_log){.group = group, .size = group->size};
    log->members = memory_zalloc((size_t)group->size * sizeof *log->members);
    for (int m = 0; m < group->size; m++) {
        struct member_log *member = &log->members[m];
        member->rank = group->ranks[m];
        const struct communicator *c = member->rank < ranks ? communicators[member->rank] : NULL;
        if (!c) {
            member->count = -1; /* unknown */
            continue;
        }
        member->at = memory_alloc((size_t)(c->calls_count + 1) * sizeof *member->at);
        for (int i = 0; i < c->calls_count; i++)
            if (c->calls[i].group_id == group->id)
                member->at[member->count++] = &c->calls[i];
        if (member->count > log->longest)
            log->longest = member->count;
    }
}

static void group_log_done(struct group_log *log)
{
    for (int m = 0; m < log->size; m++)
        free(log->members[m].at);
    free(log->members);
}

static bool records_differ(const struct call_record *a, const struct call_record *b, bool place)
{
    if (!a || !b)
        return a != b;
    if (place)
        return a->step != b->step || a->layer != b->layer || a->microbatch != b->microbatch;
    return a->count != b->count || a->format != b->format || a->reduce != b->reduce || a->root != b->root ||
           strcmp(a->op, b->op) != 0 || strcmp(a->purpose, b->purpose) != 0;
}

/* The usual case, without counting votes. */
static bool all_alike(const struct group_log *log, int s, bool finished, bool place)
{
    const struct call_record *first = NULL;
    bool any = false;
    for (int m = 0; m < log->size; m++) {
        const struct member_log *a = &log->members[m];
        if (a->count < 0 || (s >= a->count && !finished))
            continue;
        const struct call_record *record = s < a->count ? a->at[s] : NULL;
        if (any && records_differ(first, record, place))
            return false;
        first = record;
        any = true;
    }
    return true;
}

/* Who deviates at call s: member index or -1. place: compare where it is made instead of what. */
static int deviates_at(const struct group_log *log, int s, bool finished, bool place, int *ret_other)
{
    int right = -1, right_votes = 0;
    if (all_alike(log, s, finished, place))
        return -1;
    for (int m = 0; m < log->size; m++) {
        const struct member_log *a = &log->members[m];
        int votes = 0;
        if (a->count < 0 || (s >= a->count && !finished))
            continue;
        for (int n = 0; n < log->size; n++) {
            const struct member_log *b = &log->members[n];
            if (b->count < 0 || (s >= b->count && !finished))
                continue;
            votes += !records_differ(s < a->count ? a->at[s] : NULL, s < b->count ? b->at[s] : NULL, place);
        }
        if (votes > right_votes || (votes == right_votes && right >= 0 && a->rank < log->members[right].rank)) {
            right = m;
            right_votes = votes;
        }
    }
    if (right < 0)
        return -1;
    const struct member_log *r = &log->members[right];
    int deviating = -1;
    for (int m = 0; m < log->size; m++) {
        const struct member_log *a = &log->members[m];
        if (a->count < 0 || (s >= a->count && !finished))
            continue;
        if (records_differ(s < a->count ? a->at[s] : NULL, s < r->count ? r->at[s] : NULL, place) &&
            (deviating < 0 || a->rank < log->members[deviating].rank))
            deviating = m;
    }
    *ret_other = right;
    return deviating;
}

/* " for fsdp.unshard layer 3", where the two calls don't differ in themselves. */
static void place_text(char *text, size_t size, const struct call_record *r)
{
    int used = snprintf(text, size, " for %s", r->purpose);
    const char *const names[] = {"step", "layer", "micro-batch"};
    const int values[] = {r->step, r->layer, r->microbatch};
    for (int i = 0; i < 3; i++)
        if (values[i] >= 0 && used >= 0 && (size_t)used < size)
            used += snprintf(text + used, size - (size_t)used, " %s %d", names[i], values[i]);
}

static void record_text(char *text, size_t size, const struct call_record *r, bool place)
{
    if (!r) {
        snprintf(text, size, "nothing");
        return;
    }
    call_text(text, size, r->op, r->reduce, r->count, r->format, r->root);
    size_t used = strlen(text);
    if (place)
        place_text(text + used, size - used, r);
}

static bool group_mismatch(const struct group_log *log, bool finished, struct mismatch *ret)
{
    int other = -1, deviating = -1, s = 0;
    while (s < log->longest && (deviating = deviates_at(log, s, finished, false, &other)) < 0)
        s++;
    if (deviating < 0)
        return false;
    for (int t = 0; t < s; t++) {
        int place_other, place = deviates_at(log, t, finished, true, &place_other);
        if (place == deviating) {
            s = t;
            other = place_other;
            break;
        }
    }
    const struct member_log *a = &log->members[deviating], *b = &log->members[other];
    const struct call_record *wrong = s < a->count ? a->at[s] : NULL, *right = s < b->count ? b->at[s] : NULL;
    const struct call_record *known = wrong ? wrong : right;
    /* Where op, count and the rest are alike, what tells them apart is the site or the place. */
    char wrong_text[80], right_text[80];
    bool alike = wrong && right && strcmp(wrong->op, right->op) == 0 && wrong->count == right->count &&
                 wrong->format == right->format && wrong->reduce == right->reduce && wrong->root == right->root;
    record_text(wrong_text, sizeof wrong_text, wrong, alike);
    record_text(right_text, sizeof right_text, right, alike);
    *ret = (struct mismatch){
        .group = log->group->name, .sequence = (uint64_t)s, .rank = a->rank, .other = b->rank,
        .purpose = wrong ? wrong->purpose : "", .step = known->step, .layer = known->layer,
        .microbatch = known->microbatch,
    };
    snprintf(ret->text, sizeof ret->text, "rank %d calls %s as call %d of group %.20s, rank %d %s", a->rank,
             wrong_text, s, log->group->name, b->rank, right_text);
    return true;
}

/* ---- what receivers noticed ---- */

static uint64_t kind_times(struct communicator *const *communicators, int ranks, const struct call *call)
{
    uint64_t times = 0;
    for (int r = 0; r < ranks; r++)
        for (int i = 0; communicators[r] && i < communicators[r]->kinds_count; i++) {
            const struct transfer_kind *kind = &communicators[r]->kinds[i];
            if (kind->count == call->count && kind->format == call->format &&
                strcmp(kind->purpose, call->purpose) == 0)
                times += kind->times;
        }
    return times;
}

static void difference_mismatch(const struct difference *d, struct communicator *const *communicators, int ranks,
                                struct mismatch *ret)
{
    uint64_t mine = kind_times(communicators, ranks, &d->mine), theirs = kind_times(communicators, ranks, &d->theirs);
    bool receiver = mine != theirs ? mine < theirs : d->receiver > d->sender;
    const struct call *wrong = receiver ? &d->mine : &d->theirs;
    *ret = (struct mismatch){
        .group = wrong->group, .sequence = wrong->sequence, .rank = receiver ? d->receiver : d->sender,
        .other = receiver ? d->sender : d->receiver, .purpose = wrong->purpose,
        .step = d->where.step, .layer = d->where.layer, .microbatch = d->where.microbatch,
    };
    char mine_text[80], theirs_text[80];
    call_text(mine_text, sizeof mine_text, d->mine.op, d->mine.reduce, d->mine.count, d->mine.format, d->mine.root);
    call_text(theirs_text, sizeof theirs_text, d->theirs.op, d->theirs.reduce, d->theirs.count, d->theirs.format,
              d->theirs.root);
    snprintf(ret->text, sizeof ret->text, "rank %d calls %s to rank %d in group %.20s, rank %d calls %s", d->sender,
             theirs_text, d->receiver, d->mine.group, d->receiver, mine_text);
}

/* ---- all ---- */

struct id_list { uint32_t *ids; int count, capacity; };

static bool id_add(struct id_list *list, uint32_t id) /* false: was there */
{
    for (int i = 0; i < list->count; i++)
        if (list->ids[i] == id)
            return false;
    GROW(list->ids, list->count, list->capacity);
    list->ids[list->count++] = id;
    return true;
}

int match_calls(struct communicator *const *communicators, int ranks, bool finished, struct mismatch *ret_list,
                int max)
{
    struct id_list seen = {0}, reported = {0};
    int count = 0;
    struct mismatch mismatch;
    for (int r = 0; r < ranks; r++) {
        if (!communicators[r])
            continue;
        for (const struct group_entry *e = communicators[r]->groups; e; e = e->next) {
            struct group_log log;
            if (!id_add(&seen, e->group.id))
                continue;
            group_log_read(&log, communicators, ranks, &e->group);
            if (group_mismatch(&log, finished, &mismatch) && id_add(&reported, e->group.id) && count++ < max)
                ret_list[count - 1] = mismatch;
            group_log_done(&log);
        }
    }
    for (int r = 0; r < ranks; r++) {
        const struct communicator *c = communicators[r];
        for (int i = 0; c && i < c->differences_count; i++) {
            if (!id_add(&reported, c->differences[i].mine.group_id))
                continue;
            difference_mismatch(&c->differences[i], communicators, ranks, &mismatch);
            if (count++ < max)
                ret_list[count - 1] = mismatch;
        }
    }
    free(seen.ids);
    free(reported.ids);
    return count;
}
