/* ucontext: swapcontext, by the book of POSIX.1-2001: the slow one, to hold the others against. Every switch saves
 * and sets the signal mask, two system calls. ASan's own swapcontext warns once a process that it clears the
 * shadow of the stack it goes to; that hides errors there and invents none. */
#include <ucontext.h>

#include "sim/assertion.h"
#include "sim/coroutine_backend.h"

struct state { ucontext_t inside, resumer; };

static struct state *state_of(struct coroutine *coroutine)
{
    return (void *)coroutine->state;
}

static void ucontext_park(struct coroutine *coroutine)
{
    struct state *state = state_of(coroutine);
    announce_park(coroutine);
    ASSERT(swapcontext(&state->inside, &state->resumer) == 0);
    arrived_inside(coroutine);
}

/* The pointer comes in two halves, as makecontext passes ints. */
static void entry(unsigned high, unsigned low)
{
    struct coroutine *coroutine = (struct coroutine *)(uintptr_t)((uint64_t)high << 32 | low);
    coroutine_body(coroutine);
    ucontext_park(coroutine);
}

static void prepare(struct coroutine *coroutine)
{
    ucontext_t *context = &state_of(coroutine)->inside;
    uint64_t pointer = (uint64_t)(uintptr_t)coroutine;
    ASSERT(getcontext(context) == 0);
    context->uc_stack.ss_sp = coroutine->stack;
    context->uc_stack.ss_size = coroutine->stack_bytes;
    context->uc_link = NULL;
    makecontext(context, (void (*)(void))entry, 2, (unsigned)(pointer >> 32), (unsigned)pointer);
}

static void ucontext_resume(struct coroutine *coroutine)
{
    struct state *state = state_of(coroutine);
    if (!coroutine->started)
        prepare(coroutine);
    coroutine->started = true;
    announce_resume(coroutine);
    ASSERT(swapcontext(&state->resumer, &state->inside) == 0);
    arrived_at_resumer(coroutine);
}

const struct coroutine_backend coroutine_ucontext = {
    .name = "ucontext", .state_bytes = sizeof(struct state), .resume = ucontext_resume, .park = ucontext_park};
