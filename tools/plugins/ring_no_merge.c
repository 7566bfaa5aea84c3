/* ring_no_merge: wrong on purpose. A block's result takes the place of what there was, so that the last block that a row sees is all
 * that is left (yunchang 0.6.4 on NPU). With one member, or where a row sees one block only, nothing of it shows. */
#define RING_NAME "ring_no_merge"
#define RING_MERGES 0
#include "ring_right.c"
