/* params: the list of a layer's parameters, and initial values by seed and name.
 *
 * A value is a function of (seed, name, row-major index in the full shape) alone: not of the stage,
 * the shard, the storage or what else was drawn. So every layout starts from the same numbers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/transformer.h"
#include "sim/assertion.h"
#include "sim/random.h"

/* GPT-2's initializer range; the two matrices that write into the residual stream get it divided by
 * sqrt(2 x layers), the number of additions to that stream (Radford et al. 2019, section 2.3). */
static const double init_std = 0.02;

static struct param_info param_matrix(int layer, const char *name, int64_t out, int64_t in)
{
    struct param_info info = { .dims = 2, .shape = { out, in } };
    snprintf(info.name, sizeof info.name, "layers.%d.%s.weight", layer, name);
    return info;
}

static struct param_info param_norm(int layer, const char *name, int64_t width)
{
    struct param_info info = { .dims = 1, .shape = { width }, .is_norm = true };
    snprintf(info.name, sizeof info.name, "layers.%d.%s.weight", layer, name);
    return info;
}

static struct param_info param_bias(int layer, const char *name, int64_t width)
{
    struct param_info info = { .dims = 1, .shape = { width }, .is_bias = true };
    snprintf(info.name, sizeof info.name, "layers.%d.%s.bias", layer, name);
    return info;
}

int layer_params(const struct model_config *model, int layer, struct param_info ret[LAYER_PARAMS_MAX])
{
    int64_t dim = model->dim, ffn = model->ffn;
    int64_t q_width = (int64_t)model->heads * model->head_dim, kv_width = (int64_t)model->kv_heads * model->head_dim;

    ret[LAYER_ATTENTION_NORM] = param_norm(layer, "attention_norm", dim);
    ret[LAYER_WQ] = param_matrix(layer, "attention.wq", q_width, dim);
    ret[LAYER_WK] = param_matrix(layer, "attention.wk", kv_width, dim);
    ret[LAYER_WV] = param_matrix(layer, "attention.wv", kv_width, dim);
    ret[LAYER_WO] = param_matrix(layer, "attention.wo", dim, q_width);
    ret[LAYER_FFN_NORM] = param_norm(layer, "ffn_norm", dim);
    ret[LAYER_W1] = param_matrix(layer, "feed_forward.w1", ffn, dim);
    ret[LAYER_W2] = param_matrix(layer, "feed_forward.w2", dim, ffn);
    ret[LAYER_W3] = param_matrix(layer, "feed_forward.w3", ffn, dim);
    if (!model->bias)
        return LAYER_BQ;
    ret[LAYER_BQ] = param_bias(layer, "attention.wq", q_width);
    ret[LAYER_BK] = param_bias(layer, "attention.wk", kv_width);
    ret[LAYER_BV] = param_bias(layer, "attention.wv", kv_width);
    ret[LAYER_BO] = param_bias(layer, "attention.wo", dim);
    ret[LAYER_B1] = param_bias(layer, "feed_forward.w1", ffn);
    ret[LAYER_B2] = param_bias(layer, "feed_forward.w2", dim);
    ret[LAYER_B3] = param_bias(layer, "feed_forward.w3", ffn);
    return LAYER_PARAMS_MAX;
}

bool layer_adapter(const struct model_config *model, int layer, struct param_info *ret)
{
    if (model->adapter_rows == 0) return false;
    *ret = param_matrix(layer, "adapter", model->adapter_rows, model->dim);
    ret->is_adapter = true;
    return true;
}

static bool param_name_ends(const char *name, const char *end)
{
    size_t length = strlen(name), end_length = strlen(end);
    return length >= end_length && strcmp(name + length - end_length, end) == 0;
}

static void param_fill(struct tensor values, double value)
{
    int64_t count = tensor_count(values);
    for (int64_t i = 0; i < count; i++)
        format_set(values.data, (size_t)i, values.storage, value);
}

void param_initial(const struct param_info *info, const struct model_config *model, uint64_t seed,
                   struct tensor ret_values)
{
    int64_t count = info->dims == 2 ? info->shape[0] * info->shape[1] : info->shape[0];
    ASSERT(info->dims == 1 || info->dims == 2);
    ASSERT(tensor_is_dense(ret_values) && tensor_count(ret_values) == count);

    if (info->is_norm || info->is_bias) {
        param_fill(ret_values, info->is_norm ? 1.0 : 0.0);
        return;
    }
    double std = init_std;
    if (param_name_ends(info->name, ".wo.weight") || param_name_ends(info->name, ".w2.weight"))
        std *= 1.0 / sqrt(2.0 * (double)model->layers);
    struct random_stream stream = random_stream(seed, info->name);
    for (int64_t i = 0; i < count; i++) {
        double value = std * random_normal_at(&stream, (uint64_t)i);
        format_set(ret_values.data, (size_t)i, ret_values.storage, format_round(FORMAT_FP32, value));
    }
}
