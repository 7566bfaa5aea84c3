/* ring_deadlock: wrong on purpose. Every member sends first, blocking, and receives afterwards: nobody is there to receive. It works
 * as long as messages are so small that somebody keeps them (MPI's eager protocol). */
#define RING_NAME "ring_deadlock"
#define RING_BLOCKS 1
#include "ring_right.c"
