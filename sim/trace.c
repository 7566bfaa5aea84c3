/* trace: events of a rank; a ring of the last few, or an array of all of them. */
#include <stdlib.h>

#include "sim/assertion.h"
#include "sim/machine_internal.h"

const char *const trace_kind_names[] = {"send", "receive", "compute", "collective", "mark"};
_Static_assert(sizeof trace_kind_names / sizeof *trace_kind_names == TRACE_MARK + 1, "a name for each kind");

void trace_add(struct rank *rank, enum trace_kind kind, const char *name, int peer, uint64_t bytes, struct where where)
{
    struct trace *trace = &rank->trace;
    struct trace_event *event = &trace->recent[trace->total % TRACE_KEPT];
    if (rank->machine->options.trace) {
        if (trace->total == (uint64_t)trace->capacity) {
            trace->capacity = trace->capacity ? trace->capacity * 2 : 64;
            trace->events = memory_realloc(trace->events, (size_t)trace->capacity * sizeof *trace->events);
        }
        event = &trace->events[trace->total];
    }
    *event = (struct trace_event){
        .time_s = rank->time_s,
        .sequence = trace->total++,
        .kind = kind,
        .name = name,
        .peer = peer,
        .step = where.step,
        .microbatch = where.microbatch,
        .layer = where.layer,
        .bytes = bytes,
    };
}

int trace_count(const struct rank *rank)
{
    uint64_t total = rank->trace.total;
    return (int)(rank->machine->options.trace || total < TRACE_KEPT ? total : TRACE_KEPT);
}

const struct trace_event *trace_event(const struct rank *rank, int i)
{
    const struct trace *trace = &rank->trace;
    ASSERT(i >= 0 && i < trace_count(rank));
    if (rank->machine->options.trace)
        return &trace->events[i];
    uint64_t first = trace->total - (uint64_t)trace_count(rank);
    return &trace->recent[(first + (uint64_t)i) % TRACE_KEPT];
}

void trace_done(struct trace *trace)
{
    free(trace->events);
}
