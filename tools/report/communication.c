/* communication: traffic of all ranks, summed. Rows come in the order of first use, rank 0 first.
 *
 * Every member logs a collective call; it counts once, by (group id, call number in the group). A send or
 * a transfer is in no log of calls: there the sender's own count is taken. */
#include <stdlib.h>
#include <string.h>
#include "sim/arena.h"
#include "tools/report/report.h"

static bool row_matches(const struct communication_row *row, const char *purpose, const char *op, const char *group,
                        const char *algorithm, enum format format)
{
    return row->format == format && !strcmp(row->purpose, purpose) && !strcmp(row->op, op) &&
           !strcmp(row->group, group) && !strcmp(row->algorithm, algorithm);
}

static int find_row(const struct communication *all, const char *purpose, const char *op, const char *group,
                    const char *algorithm, enum format format)
{
    for (int i = 0; i < all->count; i++) {
        if (row_matches(&all->rows[i], purpose, op, group, algorithm, format)) return i;
    }
    return -1;
}

static void add_traffic(struct communication *all, const struct record *record, int rank)
{
    struct communicator *c = record->rank[rank].communicator;
    for (int i = 0; c && i < communicator_traffic_count(c); i++) {
        const struct traffic *t = communicator_traffic(c, i);
        int at = find_row(all, t->purpose, t->op, t->group, t->algorithm, t->format);
        if (at < 0) {
            at = all->count++;
            all->rows = memory_realloc(all->rows, (size_t)all->count * sizeof *all->rows);
            all->rows[at] = (struct communication_row){.purpose = t->purpose, .op = t->op, .group = t->group,
                                                       .algorithm = t->algorithm, .format = t->format};
            all->rows[at].per_rank = memory_zalloc((size_t)record->ranks * sizeof *all->rows[at].per_rank);
        }
        struct communication_row *row = &all->rows[at];
        row->count += t->count;
        row->messages += t->messages;
        row->bytes += t->bytes;
        row->per_rank[rank] = (struct communication_share){t->messages, t->bytes};
    }
}

struct logged { int row; uint32_t group_id; uint64_t sequence; };

static int compare_logged(const void *a, const void *b)
{
    const struct logged *x = a, *y = b;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    if (x->group_id != y->group_id) return x->group_id < y->group_id ? -1 : 1;
    return x->sequence < y->sequence ? -1 : x->sequence > y->sequence;
}

static void count_calls_once(struct communication *all, const struct record *record)
{
    size_t total = 0, used = 0;
    for (int r = 0; r < record->ranks; r++) {
        if (record->rank[r].communicator) total += (size_t)communicator_calls(record->rank[r].communicator);
    }
    struct logged *list = memory_alloc((total + 1) * sizeof *list);
    for (int r = 0; r < record->ranks; r++) {
        struct communicator *c = record->rank[r].communicator;
        for (int i = 0; c && i < communicator_calls(c); i++) {
            const struct call_record *call = communicator_call(c, i);
            int row = find_row(all, call->purpose, call->op, call->group, call->algorithm, call->format);
            if (row >= 0) list[used++] = (struct logged){row, call->group_id, call->sequence};
        }
    }
    qsort(list, used, sizeof *list, compare_logged);
    for (size_t i = 0; i < used; i++) {
        struct communication_row *row = &all->rows[list[i].row];
        if (i == 0 || list[i].row != list[i - 1].row) row->count = 0;
        if (i == 0 || compare_logged(&list[i], &list[i - 1]) != 0) row->count++;
    }
    free(list);
}

struct communication communication_sum(const struct record *record)
{
    struct communication all = {0};
    for (int r = 0; r < record->ranks; r++) add_traffic(&all, record, r);
    count_calls_once(&all, record);
    return all;
}

void communication_done(struct communication *communication)
{
    for (int i = 0; i < communication->count; i++) free(communication->rows[i].per_rank);
    free(communication->rows);
    *communication = (struct communication){0};
}
