/* group: member lists with an identity, and the mesh that most of them come from.
 *
 * Ranks stand on the mesh row-major, outermost axis first: with axes of sizes n0, n1, ..., nk,
 *   rank = ((c0 n1 + c1) n2 + ...) nk + ck.
 * A group's id is a hash of its name and its members in order, so that all members agree on it without
 * talking, and two groups of one name (dp_shard of stage 0, of stage 1) differ. */
#include "collectives/communicator_state.h"

#include <string.h>
#include "sim/assertion.h"
#include "sim/hash.h"

int mesh_ranks(const struct mesh *mesh)
{
    int ranks = 1;
    for (int i = 0; i < mesh->axes; i++)
        ranks *= mesh->size[i];
    return ranks;
}

int mesh_axis(const struct mesh *mesh, const char *name)
{
    for (int i = 0; i < mesh->axes; i++)
        if (strcmp(mesh->name[i], name) == 0)
            return i;
    return -1;
}

/* How far apart neighbours on an axis are. */
static int mesh_stride(const struct mesh *mesh, int axis)
{
    int stride = 1;
    for (int i = axis + 1; i < mesh->axes; i++)
        stride *= mesh->size[i];
    return stride;
}

int mesh_coordinate(const struct mesh *mesh, int rank, const char *axis)
{
    int i = mesh_axis(mesh, axis);
    return i < 0 ? 0 : rank / mesh_stride(mesh, i) % mesh->size[i];
}

int mesh_rank_at(const struct mesh *mesh, int rank, const char *axis, int coordinate)
{
    int i = mesh_axis(mesh, axis);
    if (i < 0) {
        ASSERT(coordinate == 0);
        return rank;
    }
    ASSERT(coordinate >= 0 && coordinate < mesh->size[i]);
    return rank + (coordinate - mesh_coordinate(mesh, rank, axis)) * mesh_stride(mesh, i);
}

static uint32_t group_id(const char *name, const int *ranks, int size)
{
    struct hash hash;
    uint64_t digest[2];
    hash_init(&hash);
    hash_text(&hash, name);
    hash_u64(&hash, (uint64_t)size);
    for (int i = 0; i < size; i++)
        hash_u64(&hash, (uint64_t)ranks[i]);
    hash_finish(&hash, digest);
    uint32_t id = (uint32_t)(digest[0] ^ digest[0] >> 32);
    return id ? id : 1;
}

struct group_entry *group_make(struct arena *arena, const char *name, const int *ranks, int size, int rank)
{
    struct group_entry *entry = arena_zalloc(arena, sizeof *entry);
    int *copy = arena_alloc(arena, (size_t)size * sizeof *copy);
    memcpy(copy, ranks, (size_t)size * sizeof *copy);
    entry->group.me = -1;
    for (int i = 0; i < size; i++)
        if (ranks[i] == rank)
            entry->group.me = i;
    ASSERT_MESSAGE(entry->group.me >= 0, "rank %d is not in its own group %s", rank, name);
    entry->group.name = arena_strdup(arena, name);
    entry->group.id = group_id(name, ranks, size);
    entry->group.size = size;
    entry->group.ranks = copy;
    return entry;
}
