/* liveness: the run goes on to its end, and leaves nothing behind.
 *
 * At quiescence (no rank can go on; no clock, no time-out) every blocked rank waits for one peer. Following these edges
 * gives the cycles. The site is the purpose of the operations in them: first one that waits for a rank with which its
 * purpose never exchanges (another stage in an all-gather); then point-to-point before collectives (a collective waits
 * for a member that is stuck elsewhere), then the first in the order of a step (dataflow, the printed loss last); where
 * there is no cycle, of all blocked ones; before all of these pp.schedule, where a rank's list of actions receives more
 * activations than there are micro-batches. After a run that ended: messages nobody received, transfers nobody waited
 * for. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/sites.h"
#include "scenarios/check.h"
#include "scenarios/facts.h"

static const struct blocked *blocked_at(const struct deadlock *deadlock, int rank)
{
    for (int i = 0; i < deadlock->blocked_count; i++) {
        if (deadlock->blocked[i].rank == rank) return &deadlock->blocked[i];
    }
    return NULL;
}

/* The ranks that wait for themselves in the end: members of cycles. Returns how many. */
static int mark_cycles(const struct deadlock *deadlock, int ranks, bool *ret_marked)
{
    int count = 0;
    for (int i = 0; i < deadlock->blocked_count; i++) {
        int start = deadlock->blocked[i].rank, at = deadlock->blocked[i].peer;
        for (int hops = 0; hops < ranks && at != start; hops++) {
            const struct blocked *next = blocked_at(deadlock, at);
            if (!next) break;
            at = next->peer;
        }
        if (at != start) continue;
        ret_marked[start] = true;
        count++;
    }
    return count;
}

/* May this purpose bring these two together? Stages exchange within a data rank, data ranks within a stage, cp ranks within those that share sequences. */
static bool peer_is_due(const struct record *record, const struct blocked *b)
{
    const struct rank_record *me = &record->rank[b->rank], *peer = &record->rank[b->peer];
    bool stages = !strncmp(b->purpose, "pp.", 3) || !strncmp(b->purpose, "tied.", 5);
    bool data = !strncmp(b->purpose, "fsdp.", 5) || !strcmp(b->purpose, site_loss_token_count_reduce.name);
    if (!strncmp(b->purpose, "cp.", 3)) return me->stage == peer->stage && me->tp == peer->tp && me->data_rank / layout_cp(&record->config.layout) == peer->data_rank / layout_cp(&record->config.layout);
    if (stages) return me->data_rank == peer->data_rank;
    return !data || me->stage == peer->stage;
}

static bool before(const struct site *a, const struct site *b)
{
    bool a_direct = a->facets & FACET_POINT_TO_POINT, b_direct = b->facets & FACET_POINT_TO_POINT;
    if (a_direct != b_direct) return a_direct;
    if (!a_direct && (a == &site_loss_report_reduce || b == &site_loss_report_reduce))
        return b == &site_loss_report_reduce && a != b;
    return model_site_order(a) < model_site_order(b);
}

static const struct site *site_of(const struct record *record, const struct deadlock *deadlock, const bool *marked)
{
    const struct site *first = NULL;
    for (int i = 0; i < deadlock->blocked_count; i++) {
        if (record->rank[deadlock->blocked[i].rank].receives_planned > record->config.layout.microbatches) return &site_pp_schedule;
    }
    for (int i = 0; i < deadlock->blocked_count; i++) {
        const struct site *site =
            marked[deadlock->blocked[i].rank] ? model_site_find(deadlock->blocked[i].purpose) : NULL;
        if (site && !peer_is_due(record, &deadlock->blocked[i]) &&
            (!first || model_site_order(site) < model_site_order(first)))
            first = site;
    }
    if (first) return first;
    for (int i = 0; i < deadlock->blocked_count; i++) {
        const struct site *site =
            marked[deadlock->blocked[i].rank] ? model_site_find(deadlock->blocked[i].purpose) : NULL;
        if (site && (!first || before(site, first))) first = site;
    }
    return first;
}

static void say_side(const struct blocked *b, char *text, size_t size)
{
    snprintf(text, size, "rank %d %s rank %d (%s, %s; %s)", b->rank,
             b->is_send ? "sends to" : "waits for what is to come from", b->peer, b->op, b->purpose,
             b->where ? b->where : "");
}

/* Two ranks that wait for each other: say both sides, and what to swap. Neighbouring stages that exchange agree that
 * the even one sends first. */
static void say_pair(const struct record *record, struct finding *finding, const struct blocked *a,
                     const struct blocked *b)
{
    char one[160], two[160];
    say_side(a, one, sizeof one);
    say_side(b, two, sizeof two);
    const char *swap = "";
    char which[96];
    if (a->is_send == b->is_send && record->rank[a->rank].stage != record->rank[b->rank].stage) {
        bool a_is_even = record->rank[a->rank].stage % 2 == 0;
        int deviates = a->is_send == a_is_even ? b->rank : a->rank;
        snprintf(which, sizeof which, "; swap the %s on rank %d",
                 a->is_send ? "send with the receive behind it" : "receive with the send behind it", deviates);
        swap = which;
    }
    finding_say(finding, "%s, %s%s", one, two, swap);
}

static void find_deadlock(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    const struct deadlock *deadlock = &record->deadlock;
    bool *marked = memory_zalloc((size_t)record->ranks + 1);
    bool cyclic = mark_cycles(deadlock, record->ranks, marked) > 0;
    for (int i = 0; !cyclic && i < deadlock->blocked_count; i++) marked[deadlock->blocked[i].rank] = true;
    const struct site *site = site_of(record, deadlock, marked);
    check_value(output, deadlock->blocked_count, 0);
    for (int i = 0; i < deadlock->blocked_count; i++) {
        const struct blocked *b = &deadlock->blocked[i], *peer = blocked_at(deadlock, b->peer);
        if (!marked[b->rank]) continue;
        struct finding finding = finding_new(site, place_at(b->rank, -1, -1));
        finding_pattern(&finding, "deadlock");
        if (cyclic && peer && peer->peer == b->rank) {
            say_pair(record, &finding, b, peer);
        } else {
            char side[200];
            say_side(b, side, sizeof side);
            finding_say(&finding, "%s%s", side, peer ? "" : ", which has ended or does not send it");
        }
        check_find(output, &finding);
    }
    free(marked);
}

static void find_left(const struct evidence *e, struct check_output *output)
{
    const struct record *record = e->parallel;
    check_value(output, record->unreceived, 0);
    if (record->unreceived > 0) {
        struct finding finding = finding_new(NULL, PLACE_NONE);
        finding.expected = 0;
        finding.got = record->unreceived;
        for (int i = 0; i < model_site_count(); i++) {
            if (strstr(record->unreceived_text, model_site(i)->name)) finding.site = model_site(i);
        }
        finding_pattern(&finding, "unreceived");
        finding_say(&finding, "%d message%s never received: %.200s", record->unreceived,
                    record->unreceived == 1 ? " was" : "s were", record->unreceived_text);
        check_find(output, &finding);
    }
    for (int r = 0; r < record->ranks; r++) {
        int unwaited = record->rank[r].unwaited;
        check_value(output, unwaited, 0);
        if (unwaited == 0) continue;
        struct finding finding = finding_new(NULL, place_at(r, -1, -1));
        finding.expected = 0;
        finding.got = unwaited;
        finding_pattern(&finding, "unwaited");
        finding_say(&finding, "rank %d never waited for %d of its transfers", r, unwaited);
        check_find(output, &finding);
    }
}

static void run(const struct evidence *e, struct check_output *output)
{
    if (e->parallel->outcome == MACHINE_DEADLOCK) find_deadlock(e, output);
    else find_left(e, output);
}

const struct check check_liveness = {
    .id = "liveness",
    .proves = "no rank waits for what never comes: no deadlock, no message that nobody receives, no transfer that "
              "nobody waits for",
    .tier = "default",
    .run = run,
    .workloads = CHECK_IN(WORKLOAD_TRAIN) | CHECK_IN(WORKLOAD_ATTENTION) | CHECK_IN(WORKLOAD_DENOISE),
};
