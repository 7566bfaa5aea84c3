/* dispatch_partial: what all_gather and replicated share: a rank sees the tokens of all, and gives each of them its own
 * experts' part. See dispatch_partial.c. */
#ifndef MODEL_LAYERS_DISPATCH_PARTIAL_H
#define MODEL_LAYERS_DISPATCH_PARTIAL_H

#include "model/layers/dispatch.h"

struct partial {                        /* the state of both */
    int64_t tokens;                     /* of all */
    size_t *of_rank;                    /* [ranks]: tokens from each; NULL: all ranks have the same ones */
    struct tensor normed;               /* [tokens, C] from all; without data where they are one's own */
    struct dispatch_rows rows;          /* those of this rank's experts; from and back: among all tokens */
};

/* Which experts' rows are this rank's: its own, or (a mistake) those of its place in tp. */
void partial_place(const struct layer_context *context, struct dispatch *d);
void partial_sort(const struct layer_context *context, struct dispatch *d, struct tensor normed, struct arena *arena);
void partial_combine(const struct layer_context *context, struct dispatch *d, struct tensor routed, struct arena *arena);
/* dy: of all tokens. */
void partial_combine_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_out, struct tensor d_weight, struct tensor dy);
void partial_backward(const struct layer_context *context, struct dispatch *d, struct tensor d_normed, struct tensor d_rows, struct arena *arena);

#endif
