/* vectors: growing the arrays of a rank's record. Memory comes from the record's arena; an outgrown block
 * stays there until the record is freed. */
#ifndef MODEL_VECTORS_H
#define MODEL_VECTORS_H

#include <string.h>
#include "model/record.h"
#include "sim/arena.h"

void *record_grow(struct arena *arena, void *items, int count, int *capacity, size_t item_bytes);

#define record_push(record, vector, fact)                                                              \
    do {                                                                                               \
        if ((record)->vector.count == (record)->vector.capacity) {                                     \
            (record)->vector.items = record_grow((record)->arena, (record)->vector.items,              \
                (record)->vector.count, &(record)->vector.capacity, sizeof *(record)->vector.items);   \
        }                                                                                              \
        (record)->vector.items[(record)->vector.count++] = (fact);                                     \
    } while (0)

#endif
