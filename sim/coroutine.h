/* coroutine: one stack, switched to and from in user space. Stacks come from a pool, are guarded by an
 * inaccessible page below, and are announced to ASan, TSan and valgrind. How a stack is switched to is one of
 * several backends (coroutines.def), chosen by name for a pool. */
#ifndef SIM_COROUTINE_H
#define SIM_COROUTINE_H

#include <stddef.h>
#include "sim/error.h"

struct stack_pool;
struct coroutine;
typedef void coroutine_main(void *argument);

/* Stacks are rounded up to pages; the guard comes on top. backend: one that this build has, or NULL, the default. */
struct stack_pool *stack_pool_new(size_t stack_bytes, const char *backend);
void stack_pool_free(struct stack_pool *pool);         /* accepts NULL; all coroutines must be freed */

struct coroutine *coroutine_new(struct stack_pool *pool, coroutine_main *main, void *argument, struct error *error);
void coroutine_free(struct coroutine *coroutine);      /* accepts NULL; may be parked: its stack is dropped */
void coroutine_resume(struct coroutine *coroutine);    /* runs it until it parks or ends; always from the same thread */
void coroutine_park(struct coroutine *coroutine);      /* from inside: back to the resumer */
bool coroutine_ended(const struct coroutine *coroutine);
size_t coroutine_stack_used(const struct coroutine *coroutine); /* bytes, by the fill pattern; 0 where unknown */

/* The names of the backends that this build has: the i-th, NULL past the last; 0 is the default. */
const char *coroutine_backend_at(int i);
/* The backend of this name (NULL: the default) as its name with static life time; NULL: not in this build. */
const char *coroutine_backend(const char *name);
/* Why a backend that is known isn't in this build; NULL for any other name. */
const char *coroutine_backend_missing(const char *name);

#endif
