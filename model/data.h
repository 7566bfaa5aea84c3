/* data: a text as bytes, packed into sequences with targets. The same for every rank and every layout. */
#ifndef MODEL_DATA_H
#define MODEL_DATA_H

#include <stdint.h>
#include "model/config.h"
#include "sim/arena.h"

enum { TARGET_IGNORED = -1, TOKEN_PADDING = 0, DOCUMENT_PADDING = -1 };

/* Sequences 0 .. sequences-1, each seq positions; step t's sequence i is t * global_batch + i. */
struct data {
    int64_t sequences; int seq;
    int32_t *tokens, *targets, *documents;  /* [sequences, seq]; targets TARGET_IGNORED where there is none */
};

/* Owned by the arena. The text is read again from its start as often as it takes. */
struct data data_pack(const struct data_config *config, int seq, int64_t sequences, struct arena *arena);

/* How many targets count, how many tokens are not padding, over count sequences from first. */
struct data_counts { int64_t valid, unshifted, positions; };
struct data_counts data_count(const struct data *data, int64_t first, int64_t count);

#endif
