/* arena: chunks of growing size, kept for reuse when released. */
#include "sim/arena.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sim/assertion.h"
#include "sim/sanitizer.h"

enum { ALIGNMENT = 64, CHUNK_BYTES_MIN = 64 * 1024, CHUNK_BYTES_MAX = 4 << 20, HUGE_PAGE_BYTES = 2 << 20 };

struct chunk { struct chunk *previous, *next; size_t size, used; /* used: while a later one is current */ bool in_slab; };
/* Data starts at the next multiple of ALIGNMENT after the header. */
enum { HEADER = (sizeof(struct chunk) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT };

struct arena {
    char *name;
    bool poison;
    struct chunk *first, *current;  /* chunks behind current are empty and kept */
    size_t used;                    /* in current */
    size_t before;                  /* bytes in chunks before current */
    size_t peak;
};

void memory_failed(size_t bytes)
{
    fprintf(stderr, "hpsim: out of memory: %zu bytes could not be had\n"
                    "  hint: run a smaller scenario, or allow the process more memory\n", bytes);
    exit(2);
}

void *memory_alloc(size_t bytes)
{
    void *data = malloc(bytes ? bytes : 1);
    if (!data) memory_failed(bytes);
    return data;
}

void *memory_zalloc(size_t bytes)
{
    void *data = calloc(1, bytes ? bytes : 1);
    if (!data) memory_failed(bytes);
    return data;
}

void *memory_realloc(void *old, size_t bytes)
{
    void *data = realloc(old, bytes ? bytes : 1);
    if (!data) memory_failed(bytes);
    return data;
}

char *memory_strdup(const char *text)
{
    size_t bytes = strlen(text) + 1;
    return memcpy(memory_alloc(bytes), text, bytes);
}

void memory_poison(void *data, size_t bytes)
{
    memset(data, 0xFF, bytes);
}

/* Chunks lie on huge pages where the kernel has them, small ones side by side in a slab, and are kept in the
 * process when an arena is freed: the first touch of fresh memory is otherwise a good part of a run's time, and
 * one experiment makes several runs. What was in them is never read (the poison checks hold that). */
static struct {
    pthread_mutex_t mutex;
    struct chunk *first;            /* spare chunks */
    size_t bytes;                   /* of the large ones */
    char *slab; size_t slab_left;   /* what small chunks are cut from */
} spare = {.mutex = PTHREAD_MUTEX_INITIALIZER};
enum { SPARE_BYTES_MAX = 1 << 30, SLAB_BYTES = 2 * HUGE_PAGE_BYTES, SMALL_BYTES_MAX = 512 * 1024 };

static void *pages_new(size_t total)
{
    void *data = NULL;
    if (posix_memalign(&data, HUGE_PAGE_BYTES, total)) memory_failed(total);
    (void)madvise(data, total, MADV_HUGEPAGE); /* only a wish */
    return data;
}

static struct chunk *spare_take(size_t size)
{
    size_t most = size <= SMALL_BYTES_MAX ? 2 * size : 2 * size + HUGE_PAGE_BYTES;
    struct chunk **link = &spare.first, *chunk;
    while ((chunk = *link) && (chunk->size < size || chunk->size > most)) link = &chunk->next;
    if (!chunk) return NULL;
    *link = chunk->next;
    if (!chunk->in_slab) spare.bytes -= chunk->size;
    return chunk;
}

static struct chunk *slab_cut(size_t total)
{
    if (spare.slab_left < total) { /* what is left of the old slab is lost: at most one small chunk */
        spare.slab = pages_new(SLAB_BYTES);
        spare.slab_left = SLAB_BYTES;
    }
    struct chunk *chunk = (struct chunk *)(void *)spare.slab;
    spare.slab += total;
    spare.slab_left -= total;
    *chunk = (struct chunk){.size = total - HEADER, .in_slab = true};
    return chunk;
}

static void chunk_free(struct chunk *chunk)
{
    pthread_mutex_lock(&spare.mutex);
    bool kept = SANITIZER_KEEPS_FREED && (chunk->in_slab || spare.bytes + chunk->size <= SPARE_BYTES_MAX);
    if (kept) {
        chunk->next = spare.first;
        spare.first = chunk;
        if (!chunk->in_slab) spare.bytes += chunk->size;
    }
    pthread_mutex_unlock(&spare.mutex);
    if (!kept) free(chunk);
}

/* Room for at least `size` bytes behind the header. */
static struct chunk *chunk_new(size_t size)
{
    if (size > SIZE_MAX - HEADER - 2 * HUGE_PAGE_BYTES) memory_failed(size);
    if (!SANITIZER_KEEPS_FREED) {
        void *data = NULL;
        if (posix_memalign(&data, ALIGNMENT, HEADER + size)) memory_failed(size);
        struct chunk *plain = data;
        *plain = (struct chunk){.size = size};
        return plain;
    }
    bool small = HEADER + size <= SMALL_BYTES_MAX;
    pthread_mutex_lock(&spare.mutex);
    struct chunk *chunk = spare_take(size);
    if (!chunk && small) chunk = slab_cut((HEADER + size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    pthread_mutex_unlock(&spare.mutex);
    if (!chunk) {
        size_t total = (HEADER + size + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        chunk = pages_new(total);
        *chunk = (struct chunk){.size = total - HEADER};
    }
    chunk->previous = chunk->next = NULL;
    chunk->used = 0;
    return chunk;
}

struct arena *arena_new(const char *name, bool poison)
{
    struct arena *arena = memory_zalloc(sizeof *arena);
    arena->name = memory_strdup(name);
    arena->poison = poison;
    return arena;
}

void arena_free(struct arena *arena)
{
    if (!arena) return;
    for (struct chunk *chunk = arena->first, *next; chunk; chunk = next) {
        next = chunk->next;
        chunk_free(chunk);
    }
    free(arena->name);
    free(arena);
}

static char *chunk_data(struct chunk *chunk)
{
    return (char *)chunk + HEADER;
}

/* A chunk that holds bytes, right behind the current one. */
static void next_chunk(struct arena *arena, size_t bytes)
{
    struct chunk *current = arena->current, *next = current ? current->next : arena->first;
    if (!next || next->size < bytes) {
        size_t size = current ? 4 * (current->size + HEADER) - HEADER : CHUNK_BYTES_MIN - HEADER;
        if (size > CHUNK_BYTES_MAX - HEADER) size = CHUNK_BYTES_MAX - HEADER;
        struct chunk *fresh = chunk_new(size < bytes ? bytes : size);
        fresh->previous = current;
        fresh->next = next;
        if (next) next->previous = fresh;
        if (current) current->next = fresh;
        else arena->first = fresh;
        next = fresh;
    }
    if (current) arena->before += current->used = arena->used;
    arena->current = next;
    arena->used = 0;
}

void *arena_alloc(struct arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX - ALIGNMENT) memory_failed(bytes);
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (rounded == 0) rounded = ALIGNMENT;
    if (!arena->current || arena->current->size - arena->used < rounded) next_chunk(arena, rounded);
    void *data = chunk_data(arena->current) + arena->used;
    arena->used += rounded;
    if (arena->before + arena->used > arena->peak) arena->peak = arena->before + arena->used;
    if (arena->poison) memory_poison(data, rounded);
    return data;
}

void *arena_zalloc(struct arena *arena, size_t bytes)
{
    return memset(arena_alloc(arena, bytes), 0, bytes);
}

char *arena_strdup(struct arena *arena, const char *text)
{
    size_t bytes = strlen(text) + 1;
    return memcpy(arena_alloc(arena, bytes), text, bytes);
}

char *arena_printf(struct arena *arena, const char *format, ...)
{
    ASSERT(format);
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    char *text = arena_alloc(arena, (size_t)length + 1);
    vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    va_end(arguments);
    return text;
}

struct arena_mark arena_mark(const struct arena *arena)
{
    return (struct arena_mark){arena->current, arena->used};
}

void arena_release(struct arena *arena, struct arena_mark mark)
{
    while (arena->current != mark.chunk) {
        ASSERT(arena->current); /* the mark is of this arena, and not of a later time */
        if (arena->poison) memory_poison(chunk_data(arena->current), arena->used);
        arena->current = arena->current->previous;
        arena->used = arena->current ? arena->current->used : 0;
        arena->before -= arena->used;
    }
    ASSERT(arena->used >= mark.used);
    if (arena->poison && arena->current) {
        memory_poison(chunk_data(arena->current) + mark.used, arena->used - mark.used);
    }
    arena->used = mark.used;
}

void arena_reset(struct arena *arena)
{
    arena_release(arena, (struct arena_mark){NULL, 0});
}

size_t arena_used(const struct arena *arena)
{
    return arena->before + arena->used;
}

size_t arena_peak(const struct arena *arena)
{
    return arena->peak;
}
