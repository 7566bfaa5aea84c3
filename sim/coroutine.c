/* coroutine: stacks in a pool, the table of ways to switch between them (coroutines.def), and a coroutine's life.
 *
 * One stack, low to high addresses: [guard, PROT_NONE][stack, grows down]. A stack counts as two
 * mappings of the process (vm.max_map_count, 65530 by default: about 32,000 stacks).
 * The guard is several pages, because a frame with a large array may step over a single one.
 *
 * The fill pattern is zero: what a fresh mapping holds without touching (and so paying for) a page.
 * The lowest word that isn't zero is the deepest that was ever used. A stack that is used again is
 * filled again first.
 *
 * Mapping, touching and unmapping a stack costs tens of microseconds, and a machine makes each of its
 * coroutines once; so a pool that is freed leaves its stacks, up to a limit, to the next pool that asks
 * for this size and backend, in whatever thread. */
#include "sim/coroutine.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/arena.h"
#include "sim/assertion.h"
#include "sim/coroutine_backend.h"

#if defined(__has_include)
#if __has_include(<valgrind/memcheck.h>)
#include <valgrind/memcheck.h>
#define COROUTINE_VALGRIND 1
#endif
#endif
#ifndef COROUTINE_VALGRIND
#define RUNNING_ON_VALGRIND 0
#define VALGRIND_STACK_REGISTER(low, high) ((void)(low), (void)(high), 0u)
#define VALGRIND_STACK_DEREGISTER(id) ((void)(id))
#define VALGRIND_MAKE_MEM_UNDEFINED(data, bytes) ((void)(data), (void)(bytes))
#endif

enum { GUARD_BYTES = 64 * 1024, CLEAN_PAGES = 8, CACHE_STACKS = 128 };

struct stack_pool {
    const struct coroutine_backend *backend;
    size_t stack_bytes, guard_bytes;
    int stacks, in_use;
    struct coroutine *spare;
};

static pthread_mutex_t cache_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct coroutine *cache; /* of no pool */
static int cache_count;

/* ---- the table ---- */

#define COROUTINE(name) extern const struct coroutine_backend coroutine_##name;
#include "sim/coroutines.def"
#undef COROUTINE
static const struct coroutine_backend *const backends[] = {
#define COROUTINE(name) &coroutine_##name,
#include "sim/coroutines.def"
#undef COROUTINE
};
enum { BACKENDS = sizeof backends / sizeof *backends };

/* The i-th that this build has, or NULL. */
static const struct coroutine_backend *backend_at(int i)
{
    for (int b = 0; b < BACKENDS; b++) {
        if (!backends[b]->missing && i-- == 0)
            return backends[b];
    }
    return NULL;
}

static const struct coroutine_backend *backend_find(const char *name)
{
    const struct coroutine_backend *backend = backend_at(0);
    for (int i = 0; name && backend && strcmp(backend->name, name) != 0; i++)
        backend = backend_at(i);
    return backend;
}

const char *coroutine_backend_at(int i)
{
    const struct coroutine_backend *backend = backend_at(i);
    return backend ? backend->name : NULL;
}

const char *coroutine_backend(const char *name)
{
    const struct coroutine_backend *backend = backend_find(name);
    return backend ? backend->name : NULL;
}

const char *coroutine_backend_missing(const char *name)
{
    for (int b = 0; b < BACKENDS; b++) {
        if (strcmp(backends[b]->name, name) == 0)
            return backends[b]->missing;
    }
    return NULL;
}

/* ---- stacks ---- */

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

struct stack_pool *stack_pool_new(size_t stack_bytes, const char *backend)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    struct stack_pool *pool = memory_zalloc(sizeof *pool);
    pool->backend = backend_find(backend);
    ASSERT_MESSAGE(pool->backend, "no coroutine backend \"%s\"", backend);
    ASSERT(stack_bytes > 0 && stack_bytes < SIZE_MAX / 2);
    pool->stack_bytes = round_up(stack_bytes, page);
    pool->guard_bytes = round_up(GUARD_BYTES, page);
    return pool;
}

static bool stack_map(struct stack_pool *pool, struct coroutine *coroutine, struct error *error)
{
    size_t bytes = pool->guard_bytes + pool->stack_bytes;
    char *low = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    bool mapped = low != MAP_FAILED;
    if (!mapped || mprotect(low + pool->guard_bytes, pool->stack_bytes, PROT_READ | PROT_WRITE) != 0) {
        int reason = errno;
        if (mapped)
            munmap(low, bytes);
        error_input(error, "cannot map stack number %d of %zu bytes: %s", pool->stacks + 1, pool->stack_bytes,
                    strerror(reason));
        error_hint(error, "every rank has a stack of its own, which takes 2 of the vm.max_map_count mappings that "
                   "a process may have; use fewer ranks or smaller stacks, or raise it: "
                   "sysctl -w vm.max_map_count=262144");
        return false;
    }
    coroutine->stack = low + pool->guard_bytes;
    coroutine->stack_bytes = pool->stack_bytes;
    coroutine->guard_bytes = pool->guard_bytes;
    coroutine->valgrind_id = VALGRIND_STACK_REGISTER(coroutine->stack, coroutine->stack + pool->stack_bytes);
    return true;
}

static void stack_unmap(struct coroutine *coroutine)
{
    VALGRIND_STACK_DEREGISTER(coroutine->valgrind_id);
    munmap(coroutine->stack - coroutine->guard_bytes, coroutine->guard_bytes + coroutine->stack_bytes);
    free(coroutine);
}

static struct coroutine *cache_take(const struct stack_pool *pool)
{
    pthread_mutex_lock(&cache_mutex);
    struct coroutine **link = &cache;
    while (*link && ((*link)->stack_bytes != pool->stack_bytes || (*link)->backend != pool->backend))
        link = &(*link)->next;
    struct coroutine *coroutine = *link;
    if (coroutine) {
        *link = coroutine->next;
        cache_count--;
    }
    pthread_mutex_unlock(&cache_mutex);
    return coroutine;
}

static bool cache_give(struct coroutine *coroutine)
{
    pthread_mutex_lock(&cache_mutex);
    bool room = cache_count < CACHE_STACKS;
    if (room) {
        coroutine->next = cache;
        cache = coroutine;
        cache_count++;
    }
    pthread_mutex_unlock(&cache_mutex);
    return room;
}

void stack_pool_free(struct stack_pool *pool)
{
    if (!pool)
        return;
    ASSERT(pool->in_use == 0);
    while (pool->spare) {
        struct coroutine *coroutine = pool->spare;
        pool->spare = coroutine->next;
        if (!cache_give(coroutine))
            stack_unmap(coroutine);
    }
    free(pool);
}

SANITIZER_UNCHECKED static size_t stack_scan(const char *stack, size_t bytes)
{
    const uint64_t *word = (const uint64_t *)stack;
    const uint64_t *end = (const uint64_t *)(stack + bytes);
    while (word < end && *word == 0)
        word++;
    return (size_t)((const char *)end - (const char *)word);
}

size_t coroutine_stack_used(const struct coroutine *coroutine)
{
    if (RUNNING_ON_VALGRIND) /* memory below the stack pointer may not be read there */
        return 0;
    return stack_scan(coroutine->stack, coroutine->stack_bytes);
}

/* From the top down to a run of pages that are clean already: reading on would make the kernel map page
 * after page that nobody ever touched. What a frame with an array that large hid from this stays, and
 * coroutine_stack_used then tells the deepest use of both coroutines. */
static void stack_fill(struct coroutine *coroutine)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    (void)VALGRIND_MAKE_MEM_UNDEFINED(coroutine->stack, coroutine->stack_bytes);
    int clean = RUNNING_ON_VALGRIND ? CLEAN_PAGES : 0;
    for (size_t offset = coroutine->stack_bytes; offset > 0 && clean < CLEAN_PAGES;) {
        offset -= page;
        bool dirty = stack_scan(coroutine->stack + offset, page) > 0;
        if (dirty)
            memset(coroutine->stack + offset, 0, page);
        clean = dirty ? 0 : clean + 1;
    }
}

/* ---- coroutines ---- */

struct coroutine *coroutine_new(struct stack_pool *pool, coroutine_main *main, void *argument, struct error *error)
{
    struct coroutine *coroutine = pool->spare;
    if (coroutine) {
        pool->spare = coroutine->next;
    } else {
        coroutine = cache_take(pool);
        if (!coroutine) {
            coroutine = memory_zalloc(sizeof *coroutine + pool->backend->state_bytes);
            coroutine->backend = pool->backend;
            if (!stack_map(pool, coroutine, error)) {
                free(coroutine);
                return NULL;
            }
        }
        coroutine->pool = pool;
        pool->stacks++;
    }
    if (coroutine->started)
        stack_fill(coroutine);
    pool->in_use++;
    coroutine->main = main;
    coroutine->argument = argument;
    coroutine->started = coroutine->running = coroutine->ended = false;
#ifdef SANITIZER_ADDRESS
    coroutine->inside_fake = NULL;
#endif
#ifdef SANITIZER_THREAD
    coroutine->inside_fiber = __tsan_create_fiber(0);
#endif
    return coroutine;
}

void coroutine_free(struct coroutine *coroutine)
{
    if (!coroutine)
        return;
    struct stack_pool *pool = coroutine->pool;
    ASSERT(!coroutine->running);
#ifdef SANITIZER_THREAD
    __tsan_destroy_fiber(coroutine->inside_fiber);
#endif
    SANITIZER_UNPOISON(coroutine->stack, coroutine->stack_bytes); /* frames that never returned left red zones */
    coroutine->next = pool->spare;
    pool->spare = coroutine;
    pool->in_use--;
}

void coroutine_body(struct coroutine *coroutine)
{
    arrived_inside(coroutine);
    coroutine->main(coroutine->argument);
    coroutine->ended = true;
}

void coroutine_resume(struct coroutine *coroutine)
{
    ASSERT(!coroutine->ended && !coroutine->running);
    coroutine->running = true;
    coroutine->backend->resume(coroutine);
    coroutine->running = false;
}

void coroutine_park(struct coroutine *coroutine)
{
    ASSERT(coroutine->running);
    coroutine->backend->park(coroutine);
}

bool coroutine_ended(const struct coroutine *coroutine)
{
    return coroutine->ended;
}
