/* coroutine_backend: what the ways to switch stacks (coroutines/) share with coroutine.c. Nobody else includes it.
 *
 * A backend has a state of its own in each coroutine and three functions. The checkers are told about each switch
 * by the backend, as the right moment for that differs: right before leaving, and right after arriving. */
#ifndef SIM_COROUTINE_BACKEND_H
#define SIM_COROUTINE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sim/coroutine.h"
#include "sim/sanitizer.h"

#ifdef SANITIZER_ADDRESS
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef SANITIZER_THREAD
#include <sanitizer/tsan_interface.h>
#endif

struct coroutine_backend {
    const char *name;
    const char *missing;                     /* NULL: this build has it; else what it lacks */
    size_t state_bytes;
    void (*resume)(struct coroutine *coroutine); /* enters it if !started (and sets that), else goes on in it; returns at its next park */
    void (*park)(struct coroutine *coroutine);   /* from inside; does not return if it has ended */
};

/* Kept with its stack; `next` links the ones that are free. */
struct coroutine {
    const struct coroutine_backend *backend;
    struct stack_pool *pool;
    struct coroutine *next;
    char *stack;                /* lowest usable byte; the guard is right below */
    size_t stack_bytes, guard_bytes;
    coroutine_main *main;
    void *argument;
    bool started, running, ended;
    unsigned valgrind_id;
#ifdef SANITIZER_ADDRESS
    void *inside_fake, *resumer_fake; /* ASan's stacks for frames that are checked after return */
    const void *resumer_stack;
    size_t resumer_bytes;
#endif
#ifdef SANITIZER_THREAD
    void *inside_fiber, *resumer_fiber;
#endif
    _Alignas(max_align_t) char state[]; /* the backend's */
};

/* The first thing on a new stack: runs main, then marks it ended. The caller then parks for good. */
void coroutine_body(struct coroutine *coroutine);

/* ---- what the checkers are told about a switch ---- */

/* Right before leaving for the coroutine, right before leaving it, and right after arriving. Inlined, because
 * TSan counts a function's entry and exit, and these would enter on one fiber and exit on another. */
static inline __attribute__((always_inline)) void announce_resume(struct coroutine *coroutine)
{
    (void)coroutine;
#ifdef SANITIZER_ADDRESS
    __sanitizer_start_switch_fiber(&coroutine->resumer_fake, coroutine->stack, coroutine->stack_bytes);
#endif
#ifdef SANITIZER_THREAD
    coroutine->resumer_fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(coroutine->inside_fiber, 0);
#endif
}

static inline __attribute__((always_inline)) void announce_park(struct coroutine *coroutine)
{
    (void)coroutine;
#ifdef SANITIZER_ADDRESS
    /* NULL when it ends: nothing will come back to the fake stack, so it can go. */
    __sanitizer_start_switch_fiber(coroutine->ended ? NULL : &coroutine->inside_fake, coroutine->resumer_stack,
                                   coroutine->resumer_bytes);
#endif
#ifdef SANITIZER_THREAD
    __tsan_switch_to_fiber(coroutine->resumer_fiber, 0);
#endif
}

static inline void arrived_inside(struct coroutine *coroutine)
{
    (void)coroutine;
#ifdef SANITIZER_ADDRESS
    __sanitizer_finish_switch_fiber(coroutine->inside_fake, &coroutine->resumer_stack, &coroutine->resumer_bytes);
    coroutine->inside_fake = NULL;
#endif
}

static inline void arrived_at_resumer(struct coroutine *coroutine)
{
    (void)coroutine;
#ifdef SANITIZER_ADDRESS
    __sanitizer_finish_switch_fiber(coroutine->resumer_fake, NULL, NULL);
    coroutine->resumer_fake = NULL;
#endif
}

#endif
