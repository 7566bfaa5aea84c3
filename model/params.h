/* params: how a block describes its parameters. Names: layers.<layer>.<name>.{weight,bias}. */
#ifndef MODEL_PARAMS_H
#define MODEL_PARAMS_H

#include "model/transformer.h"

struct param_info param_matrix(int layer, const char *name, int64_t out, int64_t in);
struct param_info param_norm(int layer, const char *name, int64_t width);
/* The bias of a matrix, which is the block's parameter number `index`. */
struct param_info param_bias(const struct param_info *matrix, int index);

#endif
