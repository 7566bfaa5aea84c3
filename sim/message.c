/* message: payload memory, in free lists by size, one pool a rank.
 *
 * A block is made by the rank that sends it (its home), travels by pointer, and after release goes home
 * in the merge between rounds; so pools need no lock, and a pool holds as many blocks as its rank ever
 * had in flight at once. Blocks are kept until the machine is freed.
 * Buckets: 0, 64, 128, 192, 256, then four to a doubling: 320, 384, 448, 512, 640, ... bytes. */
#include <stdlib.h>

#include "sim/assertion.h"
#include "sim/machine_internal.h"
#include "sim/sanitizer.h"

static int bucket_of(size_t bytes, size_t *ret_capacity)
{
    if (bytes <= 256) {
        int bucket = (int)((bytes + 63) / 64);
        *ret_capacity = (size_t)bucket * 64;
        return bucket;
    }
    int exponent = 63 - __builtin_clzll((unsigned long long)(bytes - 1)); /* 2^exponent < bytes */
    int quarter = (int)((bytes - 1) >> (exponent - 2));                   /* 4 .. 7 */
    int bucket = 5 + (exponent - 8) * 4 + (quarter - 4);
    ASSERT_MESSAGE(bucket < BUCKETS, "a message of %zu bytes", bytes);
    *ret_capacity = (size_t)(quarter + 1) << (exponent - 2);
    return bucket;
}

struct block *message_new(struct message_pool *pool, size_t bytes)
{
    size_t capacity;
    int bucket = bucket_of(bytes, &capacity);
    struct block *block = pool->free[bucket];
    if (block) {
        pool->free[bucket] = block->next;
        ASSERT(block->state == BLOCK_FREE);
    } else {
        size_t whole = sizeof *block + capacity;
        block = aligned_alloc(CACHE_LINE, whole);
        if (!block)
            memory_failed(whole);
        block->bucket = bucket;
        block->next_of_home = pool->all;
        pool->all = block;
        ledger_init(&block->message.ledger);
        block->message.data = block + 1;
        SANITIZER_POISON(block->message.data, capacity);
    }
    block->message.bytes = bytes;
    block->next = NULL;
    SANITIZER_UNPOISON(block->message.data, bytes);
    return block;
}

void message_home(struct message_pool *pool, struct block *block)
{
    ASSERT(block->state == BLOCK_FREE);
    block->next = pool->free[block->bucket];
    pool->free[block->bucket] = block;
}

void message_pool_done(struct message_pool *pool)
{
    while (pool->all) {
        struct block *block = pool->all;
        pool->all = block->next_of_home;
        ledger_done(&block->message.ledger);
        SANITIZER_UNPOISON(block->message.data, block->message.bytes);
        free(block);
    }
}

void message_release(struct rank *rank, struct message *message)
{
    struct block *block = (struct block *)message;
    ASSERT_MESSAGE(block->state == BLOCK_HELD && message->destination == rank->id,
                   "rank %d releases a message twice, or one it doesn't hold", rank->id);
    block->state = BLOCK_FREE;
    ledger_clear(&message->ledger);
    SANITIZER_POISON(block + 1, message->bytes); /* a later read of it is reported */
    block->next = rank->returns;
    rank->returns = block;
}
