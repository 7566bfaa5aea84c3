/* region: where the chunks of arenas lie.
 *
 * Blocks are cut from regions of huge pages, where the kernel has them, at the lowest address that is free, and what is
 * given back is joined with its free neighbours and kept in the process: the first touch of fresh memory is otherwise a
 * good part of a run's time, one experiment makes several runs, and the ranks of a run should touch no more than they
 * use. What was in a block is never read (the poison checks hold that). Where a sanitizer watches what is freed, blocks
 * are malloc's and don't grow.
 *
 * Sizes are multiples of REGION_ALIGNMENT, and so are addresses. May be called from any thread. Running out of memory
 * ends the process (memory_failed). */
#ifndef SIM_REGION_H
#define SIM_REGION_H

#include <stdbool.h>
#include <stddef.h>

enum { REGION_ALIGNMENT = 64 };

void *region_take(size_t bytes);
/* Whether the block has now `more` bytes behind its own `bytes`: only if they are free. */
bool region_grow(void *block, size_t bytes, size_t more);
void region_give(void *block, size_t bytes);

#endif
