/* jobs: meetings of ranks, from their posts to their end.
 *
 * Open meetings stand in a chained hash table by (group, call number); its order reaches no result: due ones
 * are run in the order in which they became due (merge order), and those that are given up at quiescence don't
 * touch each other.
 * Every worker runs one slice of every due meeting. Where all of them are little work the loop thread does it
 * alone, as one slice: waking a thread costs more. */
#include "sim/jobs.h"

#include <stdlib.h>
#include <string.h>

#include "sim/assertion.h"
#include "sim/hash.h"
#include "sim/machine_internal.h"

enum { SLOTS = 256, WORK_WORTH_A_THREAD = 1 << 15 };

/* ---- what ranks call ---- */

void meeting_join(struct rank *rank, struct post *post)
{
    ASSERT_MESSAGE(rank->state == RANK_RUNNING, "rank %d joins a meeting while it isn't running", rank->id);
    ASSERT(post->size >= 1 && post->member >= 0 && post->member < post->size);
    post->rank = rank;
    post->outcome = MEETING_OPEN;
    post->waited = false;
    post->done_s = rank->time_s;
    post->next = NULL;
    *(rank->posts.first ? &rank->posts.last->next : &rank->posts.first) = post;
    rank->posts.last = post;
}

enum meeting_outcome meeting_wait(struct rank *rank, struct post *post)
{
    ASSERT_MESSAGE(rank->state == RANK_RUNNING && post->rank == rank && !post->waited,
                   "rank %d waits for a meeting twice, or for another rank's", rank->id);
    post->waited = true;
    if (post->outcome == MEETING_OPEN) {
        rank->meets = post;
        rank->state = RANK_MEETING;
        coroutine_park(rank->coroutine);
        ASSERT(rank->state == RANK_RUNNING && post->outcome != MEETING_OPEN);
    }
    if (post->outcome == MEETING_DONE && post->done_s > rank->time_s)
        rank->time_s = post->done_s;
    return post->outcome;
}

void rank_unwaited(struct rank *rank, int change)
{
    rank->unwaited += change;
}

void transport_count_add(struct rank *rank, uint64_t messages, uint64_t bytes)
{
    rank->sent.messages += messages;
    rank->sent.bytes += bytes;
}

double rank_clock_set(struct rank *rank, double time_s)
{
    double was = rank->time_s;
    rank->time_s = time_s;
    return was;
}

double machine_message_cost_s(const struct machine *machine, int source, int destination, size_t bytes)
{
    const struct machine_options *options = &machine->options;
    return options->message_cost_s ? options->message_cost_s(options->cost_context, source, destination, bytes) : 0;
}

bool machine_messages_only(const struct machine *machine)
{
    return machine->options.messages_only;
}

/* ---- the table ---- */

void meeting_table_init(struct meeting_table *table)
{
    *table = (struct meeting_table){.slots = memory_zalloc(SLOTS * sizeof(struct meeting *))};
}

static void meetings_free(struct meeting *meeting)
{
    while (meeting) {
        struct meeting *next = meeting->next;
        free(meeting->posts);
        free(meeting);
        meeting = next;
    }
}

void meeting_table_done(struct meeting_table *table)
{
    for (int i = 0; table->slots && i < SLOTS; i++)
        meetings_free(table->slots[i]);
    meetings_free(table->spare);
    free(table->slots);
    free(table->due);
}

static struct meeting **slot_of(struct meeting_table *table, uint32_t group_id, uint64_t sequence)
{
    return &table->slots[hash_mix(hash_mix(group_id) ^ sequence) % SLOTS];
}

static struct meeting *meeting_of(struct meeting_table *table, const struct post *post)
{
    struct meeting **slot = slot_of(table, post->group_id, post->sequence);
    for (struct meeting *meeting = *slot; meeting; meeting = meeting->next)
        if (meeting->group_id == post->group_id && meeting->sequence == post->sequence)
            return meeting;
    struct meeting *meeting = table->spare;
    if (meeting)
        table->spare = meeting->next;
    else
        meeting = memory_zalloc(sizeof *meeting);
    struct post **posts = meeting->posts;
    int capacity = meeting->capacity;
    if (capacity < post->size) {
        capacity = post->size;
        posts = memory_realloc(posts, (size_t)capacity * sizeof *posts);
    }
    memset(posts, 0, (size_t)capacity * sizeof *posts);
    *meeting = (struct meeting){
        .posts = posts, .size = post->size, .capacity = capacity, .group_id = post->group_id,
        .sequence = post->sequence, .next = *slot,
    };
    *slot = meeting;
    return meeting;
}

static void meeting_drop(struct meeting_table *table, struct meeting *meeting)
{
    struct meeting **link = slot_of(table, meeting->group_id, meeting->sequence);
    while (*link != meeting)
        link = &(*link)->next;
    *link = meeting->next;
    meeting->next = table->spare;
    table->spare = meeting;
}

/* ---- between rounds ---- */

static void post_settle(struct machine *machine, struct post *post, enum meeting_outcome outcome)
{
    struct rank *rank = post->rank;
    post->outcome = outcome;
    if (rank->meets == post) {
        rank->meets = NULL;
        rank->state = RANK_READY;
        rank_set_add(machine->ready, rank->id);
    }
}

static void meeting_settle(struct machine *machine, struct meeting *meeting, enum meeting_outcome outcome)
{
    meeting->apart = outcome == MEETING_APART;
    for (int m = 0; m < meeting->size; m++)
        if (meeting->posts[m])
            post_settle(machine, meeting->posts[m], outcome);
    if (meeting->present == meeting->size)
        meeting_drop(&machine->meetings, meeting);
}

static bool meeting_awaited(const struct meeting *meeting)
{
    for (int m = 0; m < meeting->size; m++)
        if (meeting->posts[m] && meeting->posts[m]->waited)
            return true;
    return false;
}

static void meeting_look(struct meeting_table *table, struct meeting *meeting)
{
    if (meeting->due || meeting->present < meeting->size || !meeting_awaited(meeting))
        return;
    if (table->due_count == table->due_capacity) {
        table->due_capacity = table->due_capacity ? 2 * table->due_capacity : 16;
        table->due = memory_realloc(table->due, (size_t)table->due_capacity * sizeof(struct meeting *));
    }
    meeting->due = true;
    table->due[table->due_count++] = meeting;
}

void meetings_merge(struct machine *machine, struct rank *rank)
{
    struct meeting_table *table = &machine->meetings;
    struct post *post = rank->posts.first;
    rank->posts = (struct post_list){0};
    for (struct post *next; post; post = next) {
        next = post->next;
        struct meeting *meeting = meeting_of(table, post);
        ASSERT_MESSAGE(meeting->size == post->size && !meeting->posts[post->member],
                       "rank %d posts twice to call %llu of its group", rank->id, (unsigned long long)post->sequence);
        meeting->posts[post->member] = post;
        meeting->present++;
        if (meeting->apart) {
            post_settle(machine, post, MEETING_APART);
            if (meeting->present == meeting->size)
                meeting_drop(table, meeting);
            continue;
        }
        meeting_look(table, meeting);
    }
    if (rank->meets)
        meeting_look(table, meeting_of(table, rank->meets));
}

bool meetings_run(struct machine *machine)
{
    struct meeting_table *table = &machine->meetings;
    int count = table->due_count, jobs = 0;
    size_t all = 0;
    for (int i = 0; i < count; i++) {
        struct meeting *meeting = table->due[i];
        size_t work = 0;
        if (!meeting->posts[0]->kind->prepare(meeting, &work)) {
            meeting_settle(machine, meeting, MEETING_APART);
            continue;
        }
        all += work;
        table->due[jobs++] = meeting;
    }
    table->due_count = jobs;
    if (jobs > 0) {
        table->shared = machine->worker_count > 1 && all >= WORK_WORTH_A_THREAD;
        workers_run_jobs(machine, table->shared);
    }
    for (int i = 0; i < jobs; i++) {
        struct meeting *meeting = table->due[i];
        meeting->posts[0]->kind->finish(meeting);
        meeting_settle(machine, meeting, MEETING_DONE);
    }
    table->due_count = 0;
    return count > 0;
}

void worker_run_jobs(struct worker *worker)
{
    struct machine *machine = worker->machine;
    const struct meeting_table *table = &machine->meetings;
    int slices = table->shared ? machine->worker_count : 1, slice = (int)(worker - machine->workers);
    for (int i = 0; i < table->due_count; i++)
        table->due[i]->posts[0]->kind->run(table->due[i], slice, slices);
}

bool meetings_give_up(struct machine *machine)
{
    bool any = false;
    for (int i = 0; i < SLOTS; i++) {
        struct meeting *next;
        for (struct meeting *meeting = machine->meetings.slots[i]; meeting; meeting = next) {
            next = meeting->next;
            if (meeting->apart || !meeting_awaited(meeting))
                continue;
            meeting_settle(machine, meeting, MEETING_APART);
            any = true;
        }
    }
    return any;
}
