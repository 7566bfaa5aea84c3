/* sigsetjmp: a new coroutine is entered once with makecontext and setcontext (which set the signal mask, a system
 * call); every later switch is sigsetjmp without a mask (_setjmp) and siglongjmp (_longjmp), which save and load
 * registers only.
 *
 * The fortified longjmp refuses to jump to a deeper frame, which another stack looks like, so this file is
 * compiled without it. TSan files a jmp_buf with the fiber that is current: _setjmp comes before the
 * announcement. ASan takes every longjmp for one that unwinds, and wipes the red zones of the frames that are
 * active on the stack it leaves: it may miss an overrun of their arrays later, and never reports a false one. */
#undef _FORTIFY_SOURCE

#include <setjmp.h>
#include <ucontext.h>

#include "sim/assertion.h"
#include "sim/coroutine_backend.h"

struct state {
    jmp_buf inside, resumer;
    ucontext_t context; /* for the first entry only */
};

static struct state *state_of(struct coroutine *coroutine)
{
    return (void *)coroutine->state;
}

static void sigsetjmp_park(struct coroutine *coroutine)
{
    struct state *state = state_of(coroutine);
    if (_setjmp(state->inside) == 0) {
        announce_park(coroutine);
        _longjmp(state->resumer, 1);
    }
    arrived_inside(coroutine);
}

/* The pointer comes in two halves, as makecontext passes ints. */
static void entry(unsigned high, unsigned low)
{
    struct coroutine *coroutine = (struct coroutine *)(uintptr_t)((uint64_t)high << 32 | low);
    coroutine_body(coroutine);
    sigsetjmp_park(coroutine);
}

/* The context is taken on the thread that runs the coroutine, so that its signal mask is that thread's
 * own. It isn't a local variable: ASan's red zones around it would stay, as its frame never returns. */
static void prepare(struct coroutine *coroutine)
{
    ucontext_t *context = &state_of(coroutine)->context;
    uint64_t pointer = (uint64_t)(uintptr_t)coroutine;
    ASSERT(getcontext(context) == 0);
    context->uc_stack.ss_sp = coroutine->stack;
    context->uc_stack.ss_size = coroutine->stack_bytes;
    context->uc_link = NULL;
    makecontext(context, (void (*)(void))entry, 2, (unsigned)(pointer >> 32), (unsigned)pointer);
}

static void sigsetjmp_resume(struct coroutine *coroutine)
{
    struct state *state = state_of(coroutine);
    if (!coroutine->started)
        prepare(coroutine);
    if (_setjmp(state->resumer) == 0) {
        announce_resume(coroutine);
        if (coroutine->started)
            _longjmp(state->inside, 1);
        coroutine->started = true;
        setcontext(&state->context);
        assertion_failed(__FILE__, __LINE__, __func__, "setcontext does not return", 0);
    }
    arrived_at_resumer(coroutine);
}

const struct coroutine_backend coroutine_sigsetjmp = {
    .name = "sigsetjmp", .state_bytes = sizeof(struct state), .resume = sigsetjmp_resume, .park = sigsetjmp_park};
