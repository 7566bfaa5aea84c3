/* channel: the sends and receives of one (source, destination, group, tag), first in first out.
 *
 * A channel holds either messages without a receive or receives without a message, never both. It
 * exists only while it holds something, so a program that never reuses a tag leaves nothing behind.
 * A chained hash table; its order reaches no result: all entries of a channel's queue come from one
 * rank, in the order in which that rank posted them, and channels don't interact. */
#include <stdlib.h>
#include <string.h>

#include "sim/hash.h"
#include "sim/machine_internal.h"

struct channel_key { int source, destination; uint32_t group_id, tag; };

struct channel {
    struct channel_key key;
    struct channel *next;        /* in its slot, or spare */
    struct block_list sends;
    struct transfer_list receives;
};

enum { SLOTS_FIRST = 64 };

void channel_table_init(struct channel_table *table)
{
    *table = (struct channel_table){.slot_count = SLOTS_FIRST};
    table->slots = memory_zalloc(table->slot_count * sizeof *table->slots);
}

static void channels_free(struct channel *channel)
{
    while (channel) {
        struct channel *next = channel->next;
        free(channel);
        channel = next;
    }
}

void channel_table_done(struct channel_table *table)
{
    for (size_t i = 0; i < table->slot_count; i++)
        channels_free(table->slots[i]);
    channels_free(table->spare);
    free(table->slots);
}

static size_t slot_of(const struct channel_table *table, struct channel_key key)
{
    uint64_t ranks = (uint64_t)(uint32_t)key.source << 32 | (uint32_t)key.destination;
    uint64_t names = (uint64_t)key.group_id << 32 | key.tag;
    return (size_t)hash_mix(hash_mix(ranks) ^ names) & (table->slot_count - 1);
}

static bool key_equal(struct channel_key a, struct channel_key b)
{
    return a.source == b.source && a.destination == b.destination && a.group_id == b.group_id && a.tag == b.tag;
}

static void table_grow(struct channel_table *table)
{
    struct channel_table grown = *table;
    grown.slot_count *= 2;
    grown.slots = memory_zalloc(grown.slot_count * sizeof *grown.slots);
    for (size_t i = 0; i < table->slot_count; i++) {
        for (struct channel *channel = table->slots[i], *next; channel; channel = next) {
            next = channel->next;
            struct channel **slot = &grown.slots[slot_of(&grown, channel->key)];
            channel->next = *slot;
            *slot = channel;
        }
    }
    free(table->slots);
    *table = grown;
}

/* The link that points to the channel; its target is NULL where there is none. */
static struct channel **channel_find(struct channel_table *table, struct channel_key key)
{
    struct channel **link = &table->slots[slot_of(table, key)];
    while (*link && !key_equal((*link)->key, key))
        link = &(*link)->next;
    return link;
}

static struct channel *channel_add(struct channel_table *table, struct channel **link, struct channel_key key)
{
    if (table->used >= table->slot_count) {
        table_grow(table);
        link = channel_find(table, key);
    }
    struct channel *channel = table->spare;
    if (channel)
        table->spare = channel->next;
    else
        channel = memory_alloc(sizeof *channel);
    memset(channel, 0, sizeof *channel);
    channel->key = key;
    *link = channel;
    table->used++;
    return channel;
}

static void channel_drop_if_empty(struct channel_table *table, struct channel **link)
{
    struct channel *channel = *link;
    if (channel->sends.first || channel->receives.first)
        return;
    *link = channel->next;
    channel->next = table->spare;
    table->spare = channel;
    table->used--;
}

struct transfer *channel_send(struct channel_table *table, struct block *block)
{
    const struct message *message = &block->message;
    struct channel_key key = {message->source, message->destination, message->call.group_id, message->tag};
    struct channel **link = channel_find(table, key);
    struct channel *channel = *link;
    if (!channel || !channel->receives.first) {
        if (!channel)
            channel = channel_add(table, link, key);
        block_append(&channel->sends, block);
        return NULL;
    }
    struct transfer *receive = channel->receives.first;
    channel->receives.first = receive->next;
    channel_drop_if_empty(table, link);
    return receive;
}

struct block *channel_receive(struct channel_table *table, struct transfer *receive)
{
    struct channel_key key = {receive->peer, receive->rank->id, receive->call.group_id, receive->tag};
    struct channel **link = channel_find(table, key);
    struct channel *channel = *link;
    if (!channel || !channel->sends.first) {
        if (!channel)
            channel = channel_add(table, link, key);
        transfer_append(&channel->receives, receive);
        return NULL;
    }
    struct block *block = channel->sends.first;
    channel->sends.first = block->next;
    channel_drop_if_empty(table, link);
    return block;
}

int channel_unreceived(const struct channel_table *table, const struct block **ret_first)
{
    int count = 0;
    const struct block *first = NULL;
    for (size_t i = 0; i < table->slot_count; i++) {
        for (const struct channel *channel = table->slots[i]; channel; channel = channel->next) {
            for (const struct block *block = channel->sends.first; block; block = block->next, count++) {
                if (!first || block->message.source < first->message.source ||
                    (block->message.source == first->message.source && block->number < first->number))
                    first = block;
            }
        }
    }
    *ret_first = first;
    return count;
}
