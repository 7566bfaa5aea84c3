/* transfers: a plug-in's sends and receives. Each is checked before anything is posted, passes the site plugin.send on both
 * sides, and has a hop: its number among the messages of this call in the same direction, with the same member and tag, from 1. */
#include "model/plugin/call.h"

#include <stdio.h>
#include <string.h>

#include "model/sites.h"
#include "sim/arena.h"
#include "sim/hash.h"

enum { TAGS = 65536 };
/* Messages of plug-ins lie apart from those of the program around them, which may use the same group. */
static const uint32_t tag_first = 0x40000000u;

static int next_hop(struct hpsim_call *call, bool is_send, int peer, int tag)
{
    struct call_stream *s = call->streams;
    while (s && (s->is_send != is_send || s->peer != peer || s->tag != tag)) s = s->next;
    if (!s) {
        s = arena_zalloc(call->arena, sizeof *s);
        *s = (struct call_stream){is_send, peer, tag, 0, call->streams};
        call->streams = s;
    }
    return ++s->messages;
}

struct buffer call_buffer(const struct hpsim_call *call, const void *data, size_t count, enum hpsim_wire wire)
{
    enum format storage = call_storage(call);
    return (struct buffer){.data = (void *)(uintptr_t)data, .count = count, .storage = storage,
                           .wire = wire == HPSIM_WIRE_ACTIVATION ? call->context->activation : storage};
}

static int judge(struct hpsim_call *call, int peer, int tag, const void *data, int64_t count, enum hpsim_wire wire, bool is_send)
{
    const char *what = is_send ? "send" : "receive";
    if (peer < 0 || peer >= call->group->size)
        return call_misused(call, HPSIM_WRONG_MEMBER, "%s: member %d; there are members 0 to %d", what, peer, call->group->size - 1);
    if (peer == call->group->me) return call_misused(call, HPSIM_WRONG_MEMBER, "%s: member %d is this rank itself", what, peer);
    if (tag < 0 || tag >= TAGS) return call_misused(call, HPSIM_WRONG_TAG, "%s: tag %d; allowed: 0 to %d", what, tag, TAGS - 1);
    if (wire != HPSIM_WIRE_FULL && wire != HPSIM_WIRE_ACTIVATION) return call_misused(call, HPSIM_WRONG_ARGUMENT, "%s: wire %d", what, (int)wire);
    return call_range_fits(call, data, count, !is_send, what) ? HPSIM_OK : call->refused;
}

/* Says what is about to be done, in the words of every report. */
static struct hpsim_transfer *open_transfer(struct hpsim_call *call, bool is_send, int peer, int tag, const void *data, int64_t count, enum hpsim_wire wire, int hop)
{
    struct hpsim_transfer *t = arena_zalloc(call->arena, sizeof *t);
    *t = (struct hpsim_transfer){.how = {.site = &site_plugin_send, .where = call->where}, .is_send = is_send, .buffer = call_buffer(call, data, (size_t)count, wire)};
    t->how.where.hop = hop;
    if (!call->transfers) call->transfers_end = &call->transfers;
    *call->transfers_end = t;
    call->transfers_end = &t->next;
    return t;
}

static uint64_t checksum(struct buffer buffer)
{
    uint64_t digest[2];
    struct hash hash;
    hash_init(&hash);
    hash_reals(&hash, buffer.data, buffer.count, buffer.storage);
    hash_finish(&hash, digest);
    return digest[0];
}

static struct hpsim_transfer *start(struct hpsim_call *call, bool is_send, int peer, int tag, const void *data, int64_t count, enum hpsim_wire wire)
{
    char tagged[24] = "", text[WATCH_LAST];
    if (tag != 0) snprintf(tagged, sizeof tagged, ", tag %d", tag);
    snprintf(text, sizeof text, "%s member %d%s", is_send ? "send to" : "receive from", peer, tagged);
    call_begin(call, "%s", text);
    int status = judge(call, peer, tag, data, count, wire, is_send);
    struct hpsim_transfer *t = NULL;
    if (status == HPSIM_OK) {
        int hop = next_hop(call, is_send, peer, tag);
        call_begin(call, "%s, hop %d", text, hop);
        t = open_transfer(call, is_send, peer, tag, data, count, wire, hop);
        snprintf(t->text, sizeof t->text, "%s", call->slot->last);
        uint32_t wire_tag = tag_first + (uint32_t)tag;
        if (is_send) {
            t->checksum = checksum(t->buffer);
            t->transfer = send_start(call->communicator, call->group, &t->how, t->buffer, peer, wire_tag, SEND_SYNC);
        } else {
            memory_poison(t->buffer.data, t->buffer.count * call_width(call));
            t->transfer = receive_start(call->communicator, call->group, &t->how, t->buffer, peer, wire_tag);
        }
    }
    call_end(call);
    return t;
}

int call_wait(struct hpsim_call *call, struct hpsim_transfer *transfer)
{
    struct hpsim_transfer *t = call->transfers;
    while (t && t != transfer) t = t->next;
    if (!t) {
        call_begin(call, "wait");
        call_end(call);
        return call_misused(call, HPSIM_WRONG_POINTER, "waits for %s", transfer ? "what is no transfer of this call" : "NULL");
    }
    if (t->waited) return call_misused(call, HPSIM_WAITED_TWICE, "waits twice for %s", t->text);
    call_begin(call, "wait for %s", t->text);
    t->waited = true;
    if (t->is_send) {
        if (checksum(t->buffer) != t->checksum) call_misused(call, HPSIM_WRONG_POINTER, "changed the data of its %s before waiting for it", t->text);
        send_wait(call->communicator, t->transfer);
    } else {
        receive_wait(call->communicator, t->transfer, &t->how, t->buffer);
        call_look_at_arrived(call, t->buffer.data, t->buffer.count);
    }
    call_end(call);
    return HPSIM_OK;
}

/* NULL is misuse, which was noted. */
static int wait_at_once(struct hpsim_call *call, struct hpsim_transfer *t)
{
    return t ? call_wait(call, t) : call->refused;
}

struct hpsim_transfer *call_send_start(struct hpsim_call *call, int to, int tag, const void *data, int64_t count, enum hpsim_wire wire)
{
    return start(call, true, to, tag, data, count, wire);
}

struct hpsim_transfer *call_receive_start(struct hpsim_call *call, int from, int tag, void *data, int64_t count, enum hpsim_wire wire)
{
    return start(call, false, from, tag, data, count, wire);
}

int call_send(struct hpsim_call *call, int to, int tag, const void *data, int64_t count, enum hpsim_wire wire)
{
    return wait_at_once(call, start(call, true, to, tag, data, count, wire));
}

int call_receive(struct hpsim_call *call, int from, int tag, void *data, int64_t count, enum hpsim_wire wire)
{
    return wait_at_once(call, start(call, false, from, tag, data, count, wire));
}
