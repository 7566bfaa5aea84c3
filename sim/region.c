/* region: a list of free blocks in the order of their addresses; each says in its first bytes how long it is. */
#include "sim/region.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "sim/arena.h"
#include "sim/assertion.h"
#include "sim/sanitizer.h"

enum { REGION_BYTES = 64 << 20, HUGE_PAGE_BYTES = 2 << 20 };
#define FREE_BYTES_MAX ((size_t)1 << 30) /* a free region is kept up to that many free bytes */

struct free_block { struct free_block *next; size_t bytes; };
struct region { struct region *next; char *start; size_t bytes; };

static struct {
    pthread_mutex_t mutex;
    struct free_block *first;
    struct region *regions;
    size_t free_bytes;
} all = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static bool is_end_of_region(const char *at)
{
    for (const struct region *r = all.regions; r; r = r->next)
        if (at == r->start + r->bytes) return true;
    return false;
}

/* Does the block `behind` go on where `bytes` from `at` end? Regions that happen to touch stay apart: each is freed
 * alone. */
static bool joins(const char *at, size_t bytes, const struct free_block *behind)
{
    return behind && at + bytes == (const char *)behind && !is_end_of_region(at + bytes);
}

static void insert(char *at, size_t bytes)
{
    struct free_block *before = NULL, *next = all.first;
    while (next && (char *)next < at) before = next, next = next->next;
    struct free_block *block = (struct free_block *)(void *)at;
    if (joins(at, bytes, next)) *block = (struct free_block){next->next, bytes + next->bytes};
    else *block = (struct free_block){next, bytes};
    if (before && joins((char *)before, before->bytes, block)) {
        before->bytes += block->bytes;
        before->next = block->next;
    } else if (before) {
        before->next = block;
    } else {
        all.first = block;
    }
    all.free_bytes += bytes;
}

/* Takes the first bytes of the free block that *link leads to. */
static void cut(struct free_block **link, size_t bytes)
{
    struct free_block *block = *link, *next = block->next;
    if (block->bytes > bytes) {
        struct free_block *rest = (struct free_block *)(void *)((char *)block + bytes);
        *rest = (struct free_block){next, block->bytes - bytes};
        next = rest;
    }
    *link = next;
    all.free_bytes -= bytes;
}

static void region_new(size_t bytes)
{
    struct region *region = memory_alloc(sizeof *region);
    size_t whole = (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    void *start = NULL;
    *region = (struct region){.next = all.regions, .bytes = whole < REGION_BYTES ? REGION_BYTES : whole};
    if (posix_memalign(&start, HUGE_PAGE_BYTES, region->bytes)) memory_failed(region->bytes);
    (void)madvise(start, region->bytes, MADV_HUGEPAGE); /* only a wish */
    region->start = start;
    all.regions = region;
    insert(start, region->bytes);
}

static void regions_release(void)
{
    for (struct region **link = &all.regions, *region; (region = *link);) {
        struct free_block **block = &all.first;
        while (*block && (char *)*block < region->start) block = &(*block)->next;
        if (all.free_bytes > FREE_BYTES_MAX && (char *)*block == region->start && (*block)->bytes == region->bytes) {
            cut(block, region->bytes);
            *link = region->next;
            free(region->start);
            free(region);
        } else {
            link = &region->next;
        }
    }
}

void *region_take(size_t bytes)
{
    ASSERT(bytes > 0 && bytes % REGION_ALIGNMENT == 0);
    if (bytes > SIZE_MAX - HUGE_PAGE_BYTES) memory_failed(bytes);
    if (!SANITIZER_KEEPS_FREED) {
        void *data = NULL;
        if (posix_memalign(&data, REGION_ALIGNMENT, bytes)) memory_failed(bytes);
        return data;
    }
    pthread_mutex_lock(&all.mutex);
    struct free_block **link = &all.first;
    while (*link && (*link)->bytes < bytes) link = &(*link)->next;
    if (!*link) {
        region_new(bytes);
        link = &all.first;
        while ((*link)->bytes < bytes) link = &(*link)->next;
    }
    void *block = *link;
    cut(link, bytes);
    pthread_mutex_unlock(&all.mutex);
    return block;
}

bool region_grow(void *block, size_t bytes, size_t more)
{
    if (!SANITIZER_KEEPS_FREED) return false;
    pthread_mutex_lock(&all.mutex);
    struct free_block **link = &all.first;
    while (*link && (char *)*link < (char *)block + bytes) link = &(*link)->next;
    bool room = joins(block, bytes, *link) && (*link)->bytes >= more;
    if (room) cut(link, more);
    pthread_mutex_unlock(&all.mutex);
    return room;
}

void region_give(void *block, size_t bytes)
{
    if (!SANITIZER_KEEPS_FREED) {
        free(block);
        return;
    }
    pthread_mutex_lock(&all.mutex);
    insert(block, bytes);
    if (all.free_bytes > FREE_BYTES_MAX) regions_release();
    pthread_mutex_unlock(&all.mutex);
}
