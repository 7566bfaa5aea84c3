/* group_calls: a plug-in's collectives, at the site plugin.collective, with the algorithms of the run. */
#include "model/plugin/call.h"

#include <string.h>

#include "model/sites.h"
#include "sim/arena.h"

static struct comm how(const struct hpsim_call *call)
{
    return (struct comm){.site = &site_plugin_collective, .where = call->where};
}

/* counts as size_t, in the call's arena; NULL and noted: one is negative. */
static size_t *counts_of(struct hpsim_call *call, const char *what, const int64_t *counts, int64_t *ret_sum)
{
    int size = call->group->size;
    size_t *list = arena_alloc(call->arena, (size_t)size * sizeof *list);
    *ret_sum = 0;
    if (!counts) return call_misused(call, HPSIM_WRONG_POINTER, "%s: counts are NULL", what), NULL;
    for (int i = 0; i < size; i++) {
        if (counts[i] < 0 || counts[i] > INT64_MAX - *ret_sum) return call_misused(call, HPSIM_WRONG_COUNT, "%s: count %lld for member %d", what, (long long)counts[i], i), NULL;
        list[i] = (size_t)counts[i];
        *ret_sum += counts[i];
    }
    return list;
}

static bool overlap(struct hpsim_call *call, const char *what, const void *in, int64_t in_count, const void *out, int64_t out_count)
{
    const char *a = in, *b = out;
    size_t width = call_width(call);
    if (in_count == 0 || out_count == 0 || a + (size_t)in_count * width <= b || b + (size_t)out_count * width <= a) return false;
    call_misused(call, HPSIM_WRONG_POINTER, "%s: out and in overlap", what);
    return true;
}

static bool wire_fits(struct hpsim_call *call, const char *what, enum hpsim_wire wire)
{
    if (wire == HPSIM_WIRE_FULL || wire == HPSIM_WIRE_ACTIVATION) return true;
    call_misused(call, HPSIM_WRONG_ARGUMENT, "%s: wire %d", what, (int)wire);
    return false;
}

/* Both ranges are there and the call may be made. */
static bool ranges_fit(struct hpsim_call *call, const char *what, const void *in, int64_t in_count, const void *out, int64_t out_count, enum hpsim_wire wire)
{
    return wire_fits(call, what, wire) && call_range_fits(call, in, in_count, false, what) && call_range_fits(call, out, out_count, true, what) &&
           !overlap(call, what, in, in_count, out, out_count);
}

int call_all_gather(struct hpsim_call *call, const void *in, void *out, const int64_t *counts, enum hpsim_wire wire)
{
    call_begin(call, "all_gather");
    int64_t whole = 0;
    size_t *list = counts_of(call, "all_gather", counts, &whole);
    int64_t own = list ? (int64_t)list[call->group->me] : 0;
    bool good = list && ranges_fit(call, "all_gather", in, own, out, whole, wire);
    if (good) {
        struct comm comm = how(call);
        all_gather(call->communicator, call->group, &comm, call_buffer(call, out, (size_t)whole, wire), call_buffer(call, in, (size_t)own, wire), list);
        call_look_at_arrived(call, out, (size_t)whole);
    }
    call_end(call);
    return call->refused;
}

int call_all_to_all(struct hpsim_call *call, const void *in, void *out, int64_t count, enum hpsim_wire wire)
{
    call_begin(call, "all_to_all");
    int64_t whole = count < 0 || count > INT64_MAX / call->group->size ? -1 : count * call->group->size;
    bool good = ranges_fit(call, "all_to_all", in, whole, out, whole, wire);
    if (good) {
        struct comm comm = how(call);
        all_to_all(call->communicator, call->group, &comm, call_buffer(call, out, (size_t)whole, wire), call_buffer(call, in, (size_t)whole, wire));
        call_look_at_arrived(call, out, (size_t)whole);
    }
    call_end(call);
    return call->refused;
}

int call_all_to_all_uneven(struct hpsim_call *call, const void *in, const int64_t *send_counts, void *out, const int64_t *receive_counts, enum hpsim_wire wire)
{
    call_begin(call, "all_to_all_uneven");
    int64_t sent = 0, received = 0;
    size_t *sends = counts_of(call, "all_to_all_uneven", send_counts, &sent), *receives = counts_of(call, "all_to_all_uneven", receive_counts, &received);
    bool good = sends && receives && ranges_fit(call, "all_to_all_uneven", in, sent, out, received, wire);
    int me = call->group->me;
    if (good && sends[me] != receives[me]) {
        call_misused(call, HPSIM_WRONG_COUNT, "all_to_all_uneven: sends %zu elements to itself and receives %zu", sends[me], receives[me]);
        good = false;
    }
    if (good) {
        struct comm comm = how(call);
        all_to_all_uneven(call->communicator, call->group, &comm, call_buffer(call, out, (size_t)received, wire), call_buffer(call, in, (size_t)sent, wire), sends, receives);
        call_look_at_arrived(call, out, (size_t)received);
    }
    call_end(call);
    return call->refused;
}

int call_barrier(struct hpsim_call *call)
{
    call_begin(call, "barrier");
    struct comm comm = how(call);
    barrier(call->communicator, call->group, &comm);
    call_end(call);
    return HPSIM_OK;
}
