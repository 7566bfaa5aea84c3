/* fcontext: Boost.Context's two assembly functions, called from C by prototypes of our own. A switch pushes the
 * registers that a call must keep, exchanges stack pointers and pops: no system call, no signal mask.
 *
 * A context is the stack pointer of what is suspended. It is good for one jump; each jump hands over the
 * context of where it came from, so both sides keep the other's newest one.
 * Source: Boost.Context 1.74, "fcontext_t"; the interface is the same since 1.61. */
#include "sim/coroutine_backend.h"

#ifdef SIM_FCONTEXT
typedef void *fcontext;
struct transfer { fcontext from; void *data; };
struct transfer jump_fcontext(fcontext to, void *data);
fcontext make_fcontext(void *top, size_t bytes, void (*entry)(struct transfer transfer));

struct state { fcontext inside, resumer; };

static struct state *state_of(struct coroutine *coroutine)
{
    return (void *)coroutine->state;
}

static void fcontext_park(struct coroutine *coroutine)
{
    struct state *state = state_of(coroutine);
    announce_park(coroutine);
    state->resumer = jump_fcontext(state->resumer, NULL).from;
    arrived_inside(coroutine);
}

static void entry(struct transfer transfer)
{
    struct coroutine *coroutine = transfer.data;
    state_of(coroutine)->resumer = transfer.from;
    coroutine_body(coroutine);
    fcontext_park(coroutine);
}

static void fcontext_resume(struct coroutine *coroutine)
{
    struct state *state = state_of(coroutine);
    if (!coroutine->started)
        state->inside = make_fcontext(coroutine->stack + coroutine->stack_bytes, coroutine->stack_bytes, entry);
    coroutine->started = true;
    announce_resume(coroutine);
    state->inside = jump_fcontext(state->inside, coroutine).from;
    arrived_at_resumer(coroutine);
}

const struct coroutine_backend coroutine_fcontext = {
    .name = "fcontext", .state_bytes = sizeof(struct state), .resume = fcontext_resume, .park = fcontext_park};
#else
const struct coroutine_backend coroutine_fcontext = {
    .name = "fcontext", .missing = "it was built without libboost-context-dev"};
#endif
