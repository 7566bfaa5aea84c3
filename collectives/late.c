/* late: the deviations that do not wait for a collective or a receive (late, and torn, where half of the result is
 * there).
 *
 * Its rank takes part in the call all the same, so that the others get theirs; but what came is taken out of
 * the output again, which holds what it held before (NaN after a start, else what was there), and is put back
 * when this rank next begins or waits for any communication. So who uses the output at once uses what is not
 * yet there. The output must live until then. */
#include "collectives/communicator_state.h"

#include <stdlib.h>
#include <string.h>

struct late {
    struct late *next;
    struct buffer out;             /* the caller's; of a torn result the half that is not there */
    const struct site *site;       /* of the call */
    struct where where;
    void *data; size_t bytes;      /* before: what to put back; held: what to deliver */
    struct ledger ledger;
};

struct late *late_before(struct buffer out, const struct site *site, struct where where, bool is_torn)
{
    struct late *late = memory_zalloc(sizeof *late);
    late->out = out;
    late->site = site;
    late->where = where;
    if (is_torn) {
        late->out.data = values_at(out.data, out.count / 2, out.storage);
        late->out.count -= out.count / 2;
    }
    late->bytes = late->out.count * format_storage_bytes(late->out.storage);
    late->data = memory_alloc(late->bytes + 1);
    if (late->bytes > 0)
        memcpy(late->data, late->out.data, late->bytes);
    if (late->out.ledger)
        ledger_copy(&late->ledger, late->out.ledger);
    return late;
}

/* Exchanges what is kept with what the output holds. */
static void late_swap(struct late *late)
{
    unsigned char *kept = late->data, *there = late->out.data;
    for (size_t i = 0; i < late->bytes; i++) {
        unsigned char byte = kept[i];
        kept[i] = there[i];
        there[i] = byte;
    }
    if (late->out.ledger) {
        struct ledger ledger = late->ledger;
        late->ledger = *late->out.ledger;
        *late->out.ledger = ledger;
    }
}

void late_hold(struct communicator *c, struct late *late)
{
    late_swap(late);
    late->next = c->late;
    c->late = late;
}

static void late_done(struct late *late)
{
    ledger_done(&late->ledger);
    free(late->data);
    free(late);
}

struct late *late_in(const struct communicator *c, const void *data, size_t bytes, const struct site **ret_site,
                     struct where *ret_where)
{
    for (struct late *late = c->late; late; late = late->next) {
        if (!buffers_overlap(data, bytes, late->out.data, late->bytes))
            continue;
        *ret_site = late->site;
        *ret_where = late->where;
        return late;
    }
    return NULL;
}

void late_complete(struct communicator *c)
{
    while (c->late) {
        struct late *late = c->late;
        c->late = late->next;
        late_swap(late);
        late_done(late);
    }
}

void late_free(struct late *late)
{
    while (late) {
        struct late *next = late->next;
        late_done(late);
        late = next;
    }
}
