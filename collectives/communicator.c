/* communicator: groups by name, the choice of algorithms, the log of calls. */
#include "collectives/communicator_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "collectives/pattern.h"
#include "sim/assertion.h"

const char *const reduce_op_names[REDUCE_COUNT] = {"sum", "avg", "max"};

/* The same on every rank: all see the one plan. */
static bool communication_armed(const struct site_plan *plan)
{
    for (int i = 0; plan && i < plan->armed_count; i++)
        if (plan->armed[i].site->kind == SITE_COMMUNICATION)
            return true;
    return false;
}

/* Group names and member lists live in the rank's run arena: a deadlock report reads them after the
 * communicator is gone. */
static struct group *group_add(struct communicator *c, const char *name, const int *ranks, int size)
{
    struct group *there = communicator_group(c, name);
    if (there) {
        ASSERT_MESSAGE(there->size == size && memcmp(there->ranks, ranks, (size_t)size * sizeof *ranks) == 0,
                       "two groups named %s with different members", name);
        return there;
    }
    struct group_entry *entry = group_make(rank_arena(c->rank, ARENA_RUN), name, ranks, size, rank_id(c->rank));
    *c->groups_end = entry;
    c->groups_end = &entry->next;
    return &entry->group;
}

struct communicator *communicator_new(struct rank *rank, const struct mesh *mesh)
{
    int id = rank_id(rank), ranks = mesh_ranks(mesh);
    ASSERT(mesh->axes >= 0 && mesh->axes <= MESH_AXES_MAX && id < ranks);
    struct communicator *c = memory_zalloc(sizeof *c);
    c->rank = rank;
    c->mesh = *mesh;
    c->messages_only = machine_messages_only(rank_machine(rank)) || communication_armed(rank_plan(rank));
    c->scratch = arena_new("collectives.scratch", true);
    c->keep = arena_new("collectives", false);
    c->groups_end = &c->groups;
    ledger_init(&c->ledger);
    for (int i = 0; i < mesh->axes; i++)
        c->mesh.name[i] = arena_strdup(c->keep, mesh->name[i]);
    int *world = memory_alloc((size_t)ranks * sizeof *world);
    for (int i = 0; i < ranks; i++)
        world[i] = i;
    group_add(c, "world", world, ranks);
    free(world);
    group_add(c, "self", &id, 1); /* for deviations that name it */
    for (int i = 0; i < mesh->axes; i++)
        communicator_group_over(c, c->mesh.name[i], &c->mesh.name[i], 1);
    return c;
}

void communicator_free(struct communicator *c)
{
    if (!c)
        return;
    operations_free(c->operations);
    late_free(c->late);
    patterns_free(c->patterns);
    saved_free(c->saved, c->saved_count);
    free(c->saved);
    free(c->calls);
    free(c->traffic);
    free(c->differences);
    free(c->hazards);
    free(c->added);
    free(c->misuses);
    free(c->kinds);
    free(c->pending);
    ledger_done(&c->ledger);
    arena_free(c->scratch);
    arena_free(c->keep);
    free(c);
}

struct rank *communicator_rank(const struct communicator *c)
{
    return c->rank;
}

struct group *communicator_group(struct communicator *c, const char *name)
{
    for (struct group_entry *entry = c->groups; entry; entry = entry->next)
        if (strcmp(entry->group.name, name) == 0)
            return &entry->group;
    return NULL;
}

struct group *communicator_group_of(struct communicator *c, const char *name, const int *ranks, int size)
{
    return group_add(c, name, ranks, size);
}

struct group *communicator_group_over(struct communicator *c, const char *name, const char *const *axes,
                                      int axes_count)
{
    int rank = rank_id(c->rank), size = 1;
    int extent[MESH_AXES_MAX];
    ASSERT(axes_count >= 0 && axes_count <= MESH_AXES_MAX);
    for (int i = 0; i < axes_count; i++) {
        int axis = mesh_axis(&c->mesh, axes[i]);
        extent[i] = axis < 0 ? 1 : c->mesh.size[axis];
        size *= extent[i];
    }
    int *ranks = memory_alloc((size_t)size * sizeof *ranks);
    for (int i = 0; i < size; i++) {
        int left = i;
        ranks[i] = rank;
        for (int a = axes_count - 1; a >= 0; a--) { /* the last axis varies fastest */
            ranks[i] = mesh_rank_at(&c->mesh, ranks[i], axes[a], left % extent[a]);
            left /= extent[a];
        }
    }
    struct group *group = group_add(c, name, ranks, size);
    free(ranks);
    return group;
}

void communicator_watch(struct communicator *c)
{
    c->watches = true;
}

void communicator_force_messages(struct communicator *c)
{
    c->messages_only = true;
}

void communicator_add_algorithm(struct communicator *c, const struct algorithm *algorithm)
{
    GROW(c->added, c->added_count, c->added_capacity);
    c->added[c->added_count++] = algorithm;
}

const struct algorithm *algorithm_known(const struct communicator *c, enum collective_op op, const char *name)
{
    const struct algorithm *found = algorithm_find(op, name);
    for (int i = 0; i < c->added_count && !found; i++)
        if (c->added[i]->op == op && strcmp(c->added[i]->info.name, name) == 0)
            found = c->added[i];
    return found;
}

bool communicator_set_algorithm(struct communicator *c, const char *op, const char *algorithm)
{
    for (int i = 0; i < OP_COUNT; i++)
        if (strcmp(collective_op_names[i], op) == 0) {
            const struct algorithm *found = algorithm ? algorithm_known(c, (enum collective_op)i, algorithm) : NULL;
            if (found)
                c->chosen[i] = found;
            return found != NULL;
        }
    return false;
}

void communicator_misused(struct communicator *c, const struct site *site, struct where where, const char *operation, const char *call, const char *what)
{
    enum { MISUSES_MAX = 64 };
    if (c->misuses_count == MISUSES_MAX)
        return;
    if (!c->misuses)
        c->misuses = memory_alloc(MISUSES_MAX * sizeof *c->misuses);
    struct misuse *m = &c->misuses[c->misuses_count++];
    where.rank = rank_id(c->rank);
    *m = (struct misuse){.site = site, .where = where};
    snprintf(m->operation, sizeof m->operation, "%s", operation);
    snprintf(m->call, sizeof m->call, "%s", call);
    snprintf(m->what, sizeof m->what, "%s", what);
}

int communicator_misuses(const struct communicator *c)
{
    return c->misuses_count;
}

const struct misuse *communicator_misuse(const struct communicator *c, int i)
{
    ASSERT(i >= 0 && i < c->misuses_count);
    return &c->misuses[i];
}

void call_log(struct communicator *c, const struct operation *o)
{
    GROW(c->calls, c->calls_count, c->calls_capacity);
    c->calls[c->calls_count++] = (struct call_record){
        .op = o->call.op, .algorithm = o->call.algorithm, .purpose = o->call.purpose, .group = o->call.group,
        .group_id = o->call.group_id, .sequence = o->call.sequence, .count = o->call.count,
        .uncounted = o->op == OP_ALL_GATHER || o->op == OP_REDUCE_SCATTER ? o->uncounted * (size_t)o->size : o->uncounted,
        .format = o->call.format, .reduce = o->call.reduce, .root = o->call.root,
        .step = o->where.step, .layer = o->where.layer, .microbatch = o->where.microbatch,
    };
}

int communicator_calls(const struct communicator *c)
{
    return c->calls_count;
}

const struct call_record *communicator_call(const struct communicator *c, int i)
{
    ASSERT(i >= 0 && i < c->calls_count);
    return &c->calls[i];
}
