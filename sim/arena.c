/* arena: chunks, kept for reuse when released. The current one grows in place while there is room behind it, so that a
 * rank's arena, alone at work for the while, is as long as what is in it. */
#include "sim/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/assertion.h"
#include "sim/region.h"
#include "sim/sanitizer.h"

enum { ALIGNMENT = REGION_ALIGNMENT, STEP_BYTES = 64 * 1024, CHUNK_BYTES_MAX = 4 << 20 };

struct chunk { struct chunk *previous, *next; size_t size, used; /* used: while a later one is current */ };
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
        region_give(chunk, HEADER + chunk->size);
    }
    free(arena->name);
    free(arena);
}

static char *chunk_data(struct chunk *chunk)
{
    return (char *)chunk + HEADER;
}

static size_t in_steps(size_t bytes)
{
    return (bytes + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
}

/* A chunk that holds bytes, right behind the current one: a kept one or a new one, a quarter of what the arena has. */
static void next_chunk(struct arena *arena, size_t bytes)
{
    struct chunk *current = arena->current, *next = current ? current->next : arena->first;
    if (!next || next->size < bytes) {
        if (bytes > SIZE_MAX - HEADER - STEP_BYTES) memory_failed(bytes);
        size_t total = in_steps(HEADER + bytes), share = in_steps((arena->before + arena->used) / 4);
        if (share > CHUNK_BYTES_MAX) share = CHUNK_BYTES_MAX;
        if (total < share) total = share;
        struct chunk *fresh = region_take(total);
        *fresh = (struct chunk){.previous = current, .next = next, .size = total - HEADER};
        SANITIZER_POISON(chunk_data(fresh), fresh->size);
        if (next) next->previous = fresh;
        if (current) current->next = fresh;
        else arena->first = fresh;
        next = fresh;
    }
    if (current) arena->before += current->used = arena->used;
    arena->current = next;
    arena->used = 0;
}

/* Room for bytes more in the current chunk or a later one. */
static void make_room(struct arena *arena, size_t bytes)
{
    struct chunk *current = arena->current;
    if (current && (!current->next || current->next->size < bytes)) {
        size_t missing = bytes - (current->size - arena->used), more = in_steps(missing);
        if (region_grow(current, HEADER + current->size, more)) current->size += more;
        else if (region_grow(current, HEADER + current->size, missing)) current->size += missing;
        else next_chunk(arena, bytes);
        return;
    }
    next_chunk(arena, bytes);
}

void *arena_alloc(struct arena *arena, size_t bytes)
{
    if (bytes > SIZE_MAX - ALIGNMENT - STEP_BYTES) memory_failed(bytes);
    size_t rounded = (bytes + SANITIZER_RED_ZONE + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (rounded == 0) rounded = ALIGNMENT;
    if (!arena->current || arena->current->size - arena->used < rounded) make_room(arena, rounded);
    void *data = chunk_data(arena->current) + arena->used;
    arena->used += rounded;
    if (arena->before + arena->used > arena->peak) arena->peak = arena->before + arena->used;
    SANITIZER_UNPOISON(data, bytes);
    if (arena->poison) memory_poison(data, bytes);
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

/* What is released reads as NaN, or, under the sanitizer, is not to be read. */
static void clear(const struct arena *arena, void *data, size_t bytes)
{
    SANITIZER_UNPOISON(data, bytes); /* the red zones in it */
    if (arena->poison) memory_poison(data, bytes);
    SANITIZER_POISON(data, bytes);
}

void arena_release(struct arena *arena, struct arena_mark mark)
{
    while (arena->current != mark.chunk) {
        ASSERT(arena->current); /* the mark is of this arena, and not of a later time */
        clear(arena, chunk_data(arena->current), arena->used);
        arena->current = arena->current->previous;
        arena->used = arena->current ? arena->current->used : 0;
        arena->before -= arena->used;
    }
    ASSERT(arena->used >= mark.used);
    if (arena->current) clear(arena, chunk_data(arena->current) + mark.used, arena->used - mark.used);
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
