/* coroutine: one stack, switched to and from in user space. Stacks come from a pool, are guarded by an
 * inaccessible page below, and are announced to ASan, TSan and valgrind. */
#ifndef SIM_COROUTINE_H
#define SIM_COROUTINE_H

#include <stddef.h>
#include "sim/error.h"

struct stack_pool;
struct coroutine;
typedef void coroutine_main(void *argument);

struct stack_pool *stack_pool_new(size_t stack_bytes); /* rounded up to pages; guard comes on top */
void stack_pool_free(struct stack_pool *pool);         /* accepts NULL; all coroutines must be freed */

struct coroutine *coroutine_new(struct stack_pool *pool, coroutine_main *main, void *argument, struct error *error);
void coroutine_free(struct coroutine *coroutine);      /* accepts NULL; may be parked: its stack is dropped */
void coroutine_resume(struct coroutine *coroutine);    /* runs it until it parks or ends; always from the same thread */
void coroutine_park(struct coroutine *coroutine);      /* from inside: back to the resumer */
bool coroutine_ended(const struct coroutine *coroutine);
size_t coroutine_stack_used(const struct coroutine *coroutine); /* bytes, by the fill pattern; 0 where unknown */
const char *coroutine_backend(void);                   /* for the result's environment */

#endif
