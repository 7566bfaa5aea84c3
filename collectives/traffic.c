/* traffic: what a rank sent, summed over calls of one purpose, operation, group, algorithm and format.
 *
 * Bytes are what a real system would send: elements without the uncounted ones, in the wire's format.
 * A row counts the rank's calls: a collective once on every member (also in a group of one, which sends
 * nothing), a transfer on its sender only. */
#include "collectives/communicator_state.h"

#include <string.h>
#include "sim/assertion.h"

size_t traffic_bytes(size_t count, size_t uncounted, enum format wire)
{
    return (count > uncounted ? count - uncounted : 0) * (size_t)format_traits[wire].bytes;
}

int traffic_row(struct communicator *c, const struct call *call, bool count_call)
{
    int row = 0;
    while (row < c->traffic_count) {
        const struct traffic *t = &c->traffic[row];
        if (t->format == call->format && strcmp(t->purpose, call->purpose) == 0 && strcmp(t->op, call->op) == 0 &&
            strcmp(t->group, call->group) == 0 && strcmp(t->algorithm, call->algorithm) == 0)
            break;
        row++;
    }
    if (row == c->traffic_count) {
        GROW(c->traffic, c->traffic_count, c->traffic_capacity);
        c->traffic[c->traffic_count++] = (struct traffic){
            .purpose = call->purpose, .op = call->op, .group = call->group,
            .algorithm = call->algorithm, .format = call->format,
        };
    }
    c->traffic[row].count += count_call;
    return row;
}

void traffic_add(struct communicator *c, int row, size_t bytes)
{
    c->traffic[row].messages++;
    c->traffic[row].bytes += bytes;
}

int communicator_traffic_count(const struct communicator *c)
{
    return c->traffic_count;
}

const struct traffic *communicator_traffic(const struct communicator *c, int i)
{
    ASSERT(i >= 0 && i < c->traffic_count);
    return &c->traffic[i];
}
