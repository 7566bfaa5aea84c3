/* call: memory that a plug-in is given, and what it does against the rules. */
#include "model/plugin/call.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model/sites.h"
#include "sim/arena.h"
#include "sim/hash.h"

enum { BAND = 64, BAND_BYTE = 0xb5 };
static const size_t workspace_max = (size_t)1 << 34;

int call_misused(struct hpsim_call *call, int status, const char *format, ...)
{
    char what[MISUSE_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (call->refused == HPSIM_OK) call->refused = status;
    if (call->operation && call->operation->recording) return status; /* asked beforehand: it will do it again when it counts */
    const struct site *site = call->context ? &site_plugin_send : &site_plugin_collective;
    communicator_misused(call->communicator, site, call->where, call->what, call->slot->last, what);
    return status;
}

void call_begin(struct hpsim_call *call, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(call->slot->last, sizeof call->slot->last, format, arguments);
    va_end(arguments);
    call->refused = HPSIM_OK;
    snprintf(call->note, sizeof call->note, "in plug-in '%s', %s: %s", call->plugin->name, call->what, call->slot->last);
    watch_call(call->slot);
}

void call_end(struct hpsim_call *call)
{
    watch_return(call->slot);
}

/* ---- memory ---- */

void *call_block_new(struct hpsim_call *call, const char *name, size_t bytes, const void *original)
{
    struct call_block *block = arena_zalloc(call->arena, sizeof *block);
    char *whole = arena_alloc(call->arena, bytes + 2 * BAND);
    memset(whole, BAND_BYTE, BAND);
    memset(whole + BAND + bytes, BAND_BYTE, BAND);
    memory_poison(whole + BAND, bytes);
    *block = (struct call_block){.name = name, .data = whole + BAND, .bytes = bytes, .constant = original != NULL,
                                 .is_workspace = !strcmp(name, "workspace"), .original = original, .next = call->blocks};
    call->blocks = block;
    if (original && bytes) memcpy(block->data, original, bytes);
    return block->data;
}

static bool band_is_whole(const char *band)
{
    for (int i = 0; i < BAND; i++) {
        if ((unsigned char)band[i] != BAND_BYTE) return false;
    }
    return true;
}

static void block_check(struct hpsim_call *call, const struct call_block *block)
{
    if (!band_is_whole(block->data - BAND)) call_misused(call, HPSIM_WRONG_POINTER, "wrote in front of %s (%zu bytes)", block->name, block->bytes);
    if (!band_is_whole(block->data + block->bytes)) call_misused(call, HPSIM_WRONG_POINTER, "wrote behind the end of %s (%zu bytes)", block->name, block->bytes);
    if (block->constant && block->bytes && memcmp(block->data, block->original, block->bytes) != 0)
        call_misused(call, HPSIM_WRONG_POINTER, "wrote to its input %s", block->name);
}

static struct call_block *block_around(struct hpsim_call *call, const void *data)
{
    for (struct call_block *b = call->blocks; b; b = b->next) {
        if ((const char *)data >= b->data && (const char *)data < b->data + b->bytes + (b->bytes == 0)) return b;
    }
    return NULL;
}

bool call_range_fits(struct hpsim_call *call, const void *data, int64_t count, bool writes, const char *what)
{
    if (count < 0 || (uint64_t)count > workspace_max / call_width(call))
        return call_misused(call, HPSIM_WRONG_COUNT, "%s: count %lld", what, (long long)count), false;
    if (count == 0) return true;
    if (!data) return call_misused(call, HPSIM_WRONG_POINTER, "%s: the data is NULL and the count %lld", what, (long long)count), false;
    const struct call_block *block = block_around(call, data);
    if (!block) return true;
    size_t left = (size_t)(block->data + block->bytes - (const char *)data), bytes = (size_t)count * call_width(call);
    if (block->freed) return call_misused(call, HPSIM_WRONG_POINTER, "%s: a workspace that was freed", what), false;
    if (bytes > left)
        return call_misused(call, HPSIM_WRONG_COUNT, "%s: %lld elements of %s, which has %zu there", what, (long long)count, block->name, left / call_width(call)), false;
    if (writes && block->constant) return call_misused(call, HPSIM_WRONG_POINTER, "%s: into its input %s", what, block->name), false;
    return true;
}

static void *workspace(struct hpsim_call *call, size_t bytes)
{
    call_begin(call, "workspace of %zu bytes", bytes);
    void *data = bytes > 0 && bytes <= workspace_max ? call_block_new(call, "workspace", bytes, NULL) : NULL;
    call_end(call);
    if (bytes > workspace_max) call_misused(call, HPSIM_WRONG_COUNT, "workspace of %zu bytes; at most %zu are given", bytes, workspace_max);
    return data;
}

static int workspace_free(struct hpsim_call *call, void *data)
{
    call_begin(call, "workspace_free");
    struct call_block *block = data ? block_around(call, data) : NULL;
    call_end(call);
    if (!data) return HPSIM_OK;
    if (!block || block->data != data || !block->is_workspace)
        return call_misused(call, HPSIM_WRONG_POINTER, "frees %s%s, which is no workspace of this call", block ? "a place in " : "memory", block ? block->name : "");
    if (block->freed) return call_misused(call, HPSIM_WRONG_POINTER, "frees a workspace twice");
    block_check(call, block);
    block->freed = true;
    memory_poison(block->data, block->bytes);
    return HPSIM_OK;
}

/* Is there anything that is not a number? Infinities are numbers here: a row that sees nothing has a log-sum-exp of -inf. */
void call_look_at_arrived(struct hpsim_call *call, const void *data, size_t count)
{
    for (size_t i = 0; i < count && !call->met_nan; i++) {
        double value = call_storage(call) == FORMAT_FP64 ? ((const double *)data)[i] : (double)((const float *)data)[i];
        call->met_nan = value != value;
    }
}

/* ---- at the end ---- */

void call_finish(struct hpsim_call *call)
{
    for (struct hpsim_transfer *t = call->transfers; t; t = t->next) {
        if (!t->waited) call_misused(call, HPSIM_WRONG_POINTER, "%s was started and never waited for", t->text);
    }
    for (struct call_block *b = call->blocks; b; b = b->next) {
        if (!b->freed) block_check(call, b);
    }
}

/* ---- what does not move anything ---- */

static int positions(struct hpsim_call *call, int member, int64_t sequence, int32_t *ret_positions)
{
    call_begin(call, "positions of member %d in sequence %lld", member, (long long)sequence);
    bool good = member >= 0 && member < call->group->size && sequence >= 0 && sequence < call->context->batch && ret_positions;
    if (good) context_positions(call->context, member, sequence, ret_positions);
    call_end(call);
    if (good) return HPSIM_OK;
    bool is_member = member >= 0 && member < call->group->size;
    return call_misused(call, !is_member ? HPSIM_WRONG_MEMBER : ret_positions ? HPSIM_WRONG_ARGUMENT : HPSIM_WRONG_POINTER, "positions of member %d in sequence %lld; there are %d members and %lld sequences%s", member, (long long)sequence,
                        call->group->size, (long long)call->context->batch, ret_positions ? "" : ", and the result has no place (NULL)");
}

const struct hpsim_api plugin_api = {
    .size = sizeof(struct hpsim_api), .send = call_send, .receive = call_receive, .send_start = call_send_start, .receive_start = call_receive_start,
    .wait = call_wait, .all_gather = call_all_gather, .all_to_all = call_all_to_all, .all_to_all_uneven = call_all_to_all_uneven, .barrier = call_barrier,
    .workspace = workspace, .workspace_free = workspace_free, .positions = positions,
};
