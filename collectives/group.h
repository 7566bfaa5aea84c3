/* group: the ranks that take part in a collective, in member order. mesh: the named axes ranks stand on.
 *
 * A group object belongs to one rank (it counts that rank's calls); all members' objects of one group
 * carry the same id. Ranks are addressed through their group and mesh only. */
#ifndef COLLECTIVES_GROUP_H
#define COLLECTIVES_GROUP_H

#include <stdint.h>
#include "sim/machine.h"

struct group {
    const char *name;      /* "dp_shard", "pp", "world", "embedding" */
    uint32_t id;           /* hash of name and members: the same on every member */
    int size, me;          /* me: this rank's index in the group */
    const int *ranks;      /* [size] global ranks in member order */
    uint64_t calls;        /* collective calls this rank has made in it */
};

enum { MESH_AXES_MAX = 8 };
struct mesh { int axes; const char *name[MESH_AXES_MAX]; int size[MESH_AXES_MAX]; }; /* outermost first */

int mesh_ranks(const struct mesh *mesh);
int mesh_axis(const struct mesh *mesh, const char *name);                 /* -1: no such axis */
int mesh_coordinate(const struct mesh *mesh, int rank, const char *axis); /* 0 where the axis is absent */
int mesh_rank_at(const struct mesh *mesh, int rank, const char *axis, int coordinate); /* rank moved along an axis */

#endif
