/* tensor_groups: one sort by a total order. */
#include "scenarios/tensor_groups.h"

#include <stdlib.h>

#include "sim/arena.h"

static int compare_entries(const void *left, const void *right)
{
    const struct tensor_entry *a = left, *b = right;
    const int64_t keys[][2] = {{a->fact->step, b->fact->step},           {a->fact->kind, b->fact->kind},
                               {a->fact->param, b->fact->param},         {a->fact->unit, b->fact->unit},
                               {a->fact->part, b->fact->part},         {a->fact->first, b->fact->first}, {a->rank, b->rank}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (keys[i][0] != keys[i][1]) return keys[i][0] < keys[i][1] ? -1 : 1;
    }
    return 0;
}

struct tensor_groups tensor_groups_new(const struct record *record)
{
    struct tensor_groups groups = {0};
    int total = 0;
    for (int r = 0; r < record->ranks; r++) total += record->rank[r].tensors.count;
    groups.entries = memory_alloc((size_t)(total + 1) * sizeof *groups.entries);
    for (int r = 0; r < record->ranks; r++) {
        for (int i = 0; i < record->rank[r].tensors.count; i++) {
            groups.entries[groups.count++] = (struct tensor_entry){&record->rank[r].tensors.items[i], r};
        }
    }
    qsort(groups.entries, (size_t)groups.count, sizeof *groups.entries, compare_entries);
    return groups;
}

int tensor_groups_first(const struct tensor_groups *groups, int step, enum tensor_kind kind, int param, int unit)
{
    const struct tensor_fact like = {.step = step, .kind = kind, .param = param, .unit = unit, .part = -1, .first = -1};
    const struct tensor_entry sought = {&like, -1};
    int from = 0, to = groups->count;
    while (from < to) {
        int middle = from + (to - from) / 2;
        if (compare_entries(&groups->entries[middle], &sought) < 0) from = middle + 1;
        else to = middle;
    }
    return from;
}
