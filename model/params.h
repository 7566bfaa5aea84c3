/* params: how a block describes its parameters. Names: layers.<layer>.<name>.{weight,bias}. */
#ifndef MODEL_PARAMS_H
#define MODEL_PARAMS_H

#include "model/transformer.h"

struct param_info param_matrix(int layer, const char *name, int64_t out, int64_t in);
struct param_info param_norm(int layer, const char *name, int64_t width);
/* The bias of a matrix, which is the block's parameter number `index`. */
struct param_info param_bias(const struct param_info *matrix, int index);

/* ---- tensor parallelism ---- */
/* Does each tp rank compute with it on a part alone, so that its gradient is a part of a sum over tp? Sequence parallelism: on
 * a slice of each sequence; norms of heads: on those that are its own, sequence parallelism or not. */
static inline bool param_sees_part(const struct layout *layout, const struct param_info *info)
{
    if (info->is_head_norm) return layout->tp > 1 && !(layout->tensor_whole & TENSOR_ATTENTION);
    /* Each tp rank has other experts, or a part of every one, which gets the rows of all. */
    bool apart = info->is_expert && ((layout->experts_over_tp && layout_ep(layout) > 1) || layout->etp > 1);
    return layout_slices_sequences(layout) && info->cut == CUT_NONE && !apart;
}
/* Rows and columns of one rank's part. */
void param_cut_shape(const struct param_info *info, int tp, int64_t *ret_rows, int64_t *ret_columns);
/* Where an element of tp rank `me`'s part lies in the whole, both row-major. */
int64_t param_cut_element(const struct param_info *info, int tp, int me, int64_t element);
/* A rank's elements first .. first+count-1, out of the whole. */
void param_cut_copy(void *part, const void *whole, enum format storage, const struct param_info *info, int tp, int me,
                    int64_t first, int64_t count);

#endif
