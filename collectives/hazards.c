/* hazards: what became of the buffers of asynchronous calls between their start and the end of their wait.
 *
 * Three facts, each noted where it can be seen, whoever is to blame:
 *   read         who uses an output says so (communicator_reads); the call was not waited for yet
 *   overwritten  the input's checksum at the start is not that of what is taken, or of what is there at the end
 *   aliased      what is there at the end is the beginning of the output
 * Between its start and its wait a call may be carried out at any time: so what is noted depends on the order of
 * this rank's own calls alone, and not on when anything arrived. A call in place is looked at until its input is
 * taken. Limit: a write that leaves the bytes as they were is none. */
#include "collectives/communicator_state.h"

#include <string.h>
#include "sim/assertion.h"

int communicator_hazards(const struct communicator *c)
{
    return c->hazards_count;
}

const struct hazard *communicator_hazard(const struct communicator *c, int i)
{
    ASSERT(i >= 0 && i < c->hazards_count);
    return &c->hazards[i];
}

static void note(struct communicator *c, struct hazard hazard)
{
    if (c->hazards_count == HAZARDS_MAX)
        return;
    if (!c->hazards)
        c->hazards = memory_alloc(HAZARDS_MAX * sizeof *c->hazards);
    c->hazards[c->hazards_count++] = hazard;
}

static void note_input(struct operation *o, enum hazard_kind kind)
{
    o->hazardous = true; /* one note a call says enough */
    note(o->c, (struct hazard){kind, o->site, o->where, NULL, WHERE_NONE});
}

/* Four lanes of h = h * odd + word. */
uint64_t hazard_checksum(struct buffer buffer)
{
    static const uint64_t odd = 0x9e3779b97f4a7c15u;
    uint64_t lanes[4] = {1, 2, 3, 4}, words[4];
    const char *data = buffer.data;
    size_t bytes = data ? buffer.count * format_storage_bytes(buffer.storage) : 0, i = 0;
    for (; i + sizeof words <= bytes; i += sizeof words) {
        memcpy(words, data + i, sizeof words);
        for (int k = 0; k < 4; k++)
            lanes[k] = lanes[k] * odd + words[k];
    }
    memset(words, 0, sizeof words);
    if (i < bytes)
        memcpy(words, data + i, bytes - i);
    for (int k = 0; k < 4; k++)
        lanes[k] = lanes[k] * odd + words[k];
    return ((lanes[0] * odd + lanes[1]) * odd + lanes[2]) * odd + lanes[3];
}

bool buffers_overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes)
{
    uintptr_t from_a = (uintptr_t)a, from_b = (uintptr_t)b;
    return a && b && from_a < from_b + b_bytes && from_b < from_a + a_bytes;
}

static size_t bytes_of(struct buffer buffer)
{
    return buffer.count * format_storage_bytes(buffer.storage);
}

void hazard_posted(struct operation *o)
{
    o->asynchronous = true;
    if (o->c->watches)
        o->posted = hazard_checksum(o->in);
}

/* The bytes that a send takes along: those that its caller gave. */
void hazard_sent(struct communicator *c, const struct comm *how, struct where where, struct buffer given, struct buffer taken)
{
    given.count = taken.count < given.count ? taken.count : given.count;
    taken.count = given.count;
    if (hazard_checksum(given) != hazard_checksum(taken))
        note(c, (struct hazard){HAZARD_OVERWRITTEN, how->site, where, NULL, WHERE_NONE});
}

void hazard_taken(struct operation *o)
{
    if (o->c->watches && o->asynchronous && o->entered && hazard_checksum(o->in) != o->posted)
        note_input(o, HAZARD_OVERWRITTEN);
}

void hazard_completed(struct operation *o, struct buffer in)
{
    if (!o->c->watches || !o->asynchronous || !o->entered || o->hazardous || buffers_overlap(in.data, bytes_of(in), o->out.data, bytes_of(o->out)))
        return;
    if (hazard_checksum(in) == o->posted)
        return;
    size_t bytes = bytes_of(in) < bytes_of(o->out) ? bytes_of(in) : bytes_of(o->out);
    note_input(o, bytes > 0 && memcmp(in.data, o->out.data, bytes) == 0 ? HAZARD_ALIASED : HAZARD_OVERWRITTEN);
}

void communicator_reads(struct communicator *c, const void *data, size_t bytes, const struct site *by, struct where where)
{
    struct hazard hazard = {.kind = HAZARD_READ, .by = by, .by_where = where};
    if (late_in(c, data, bytes, &hazard.site, &hazard.where)) {
        note(c, hazard);
        return;
    }
    for (const struct operation *o = c->operations; o; o = o->next) {
        if (!o->busy || !o->asynchronous || !o->entered || !buffers_overlap(data, bytes, o->out.data, bytes_of(o->out)))
            continue;
        hazard.site = o->site;
        hazard.where = o->where;
        note(c, hazard);
        return;
    }
}
