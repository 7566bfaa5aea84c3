/* ring_local_only: wrong on purpose. Blocks go round and arrive, and none of them is looked at: every member attends to its own rows
 * alone. In a sequence whose members do not need each other (documents that fit, P = 1) nothing of it shows. */
#define RING_NAME "ring_local_only"
#define RING_COMPUTES(a, step) ((void)(a), (step) == 0)
#include "ring_right.c"
