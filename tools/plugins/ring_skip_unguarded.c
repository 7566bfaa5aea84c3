/* ring_skip_unguarded: wrong on purpose. Steps that a causal mask over contiguous shards makes useless (the block is from behind) are
 * left out whatever the mask and the layout are. With a causal mask and contiguous shards it is right. */
#define RING_NAME "ring_skip_unguarded"
#define RING_COMPUTES(a, step) ((step) <= (a)->member)
#include "ring_right.c"
