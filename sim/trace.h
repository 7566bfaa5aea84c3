/* trace: what a rank did, as events in the order of its program. The last few of every rank are always
 * kept (a deadlock shows them); all of them where machine_options.trace says so. */
#ifndef SIM_TRACE_H
#define SIM_TRACE_H

#include <stdint.h>
#include "sim/machine.h"

enum trace_kind { TRACE_SEND, TRACE_RECEIVE, TRACE_COMPUTE, TRACE_COLLECTIVE, TRACE_MARK };
extern const char *const trace_kind_names[];

struct trace_event {
    double time_s;            /* virtual, at the start */
    uint64_t sequence;        /* in its rank, from 0 */
    enum trace_kind kind;
    const char *name;         /* static text: a site, an op, a layer */
    int peer;                 /* -1: none */
    int step, microbatch, layer; /* -1: none */
    uint64_t bytes;
};

void trace_add(struct rank *rank, enum trace_kind kind, const char *name, int peer, uint64_t bytes, struct where where);
int trace_count(const struct rank *rank);                                /* events kept */
const struct trace_event *trace_event(const struct rank *rank, int i);   /* ascending; i < trace_count */

#endif
