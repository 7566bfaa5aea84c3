/* attention_view: which keys a query sees, and what its scores are multiplied by.
 *
 * The query at position p of document c sees the key at position k of document e if
 *   (not causal or k <= p)  and  (window = 0 or |p - k| < window)  and  (no documents, or c = e >= 0). */
#ifndef MODEL_ATTENTION_VIEW_H
#define MODEL_ATTENTION_VIEW_H

#include <stdbool.h>
#include <stdint.h>

struct attention_view {
    const int32_t *q_positions, *k_positions; /* [batch, queries], [batch, keys], ascending in each sequence; NULL: 0, 1, 2, ... */
    const int32_t *q_documents, *k_documents; /* alike, of any order; below 0: padding. NULL, both: one document */
    bool causal;
    int64_t window;
    double scale;                             /* 0: 1/sqrt(head_dim) */
};

#endif
