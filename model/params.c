/* params: what a block says of its parameters, and initial values by seed and name.
 *
 * A value is a function of (seed, name, row-major index in the full shape) alone: not of the stage,
 * the shard, the storage or what else was drawn. So every layout starts from the same numbers. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/params.h"
#include "sim/assertion.h"
#include "sim/random.h"

/* GPT-2's initializer range; the two matrices that write into the residual stream get it divided by
 * sqrt(2 x layers), the number of additions to that stream (Radford et al. 2019, section 2.3). */
static const double init_std = 0.02;

struct param_info param_matrix(int layer, const char *name, int64_t out, int64_t in)
{
    struct param_info info = { .dims = 2, .shape = { out, in }, .fan_in = in, .of_matrix = PARAM_NONE, .through_softmax = PARAM_NONE };
    snprintf(info.name, sizeof info.name, "layers.%d.%s.weight", layer, name);
    return info;
}

struct param_info param_norm(int layer, const char *name, int64_t width)
{
    struct param_info info = { .dims = 1, .shape = { width }, .is_norm = true, .of_matrix = PARAM_NONE, .through_softmax = PARAM_NONE };
    snprintf(info.name, sizeof info.name, "layers.%d.%s.weight", layer, name);
    return info;
}

struct param_info param_bias(const struct param_info *matrix, int index)
{
    struct param_info info = *matrix;
    static const char end[] = "weight";
    info.dims = 1;
    info.shape[1] = 0;
    info.is_bias = true;
    info.writes_residual = false;
    info.of_matrix = index;
    if (info.cut == CUT_COLUMNS) info.cut = CUT_NONE; /* of a row-parallel matrix: added once, after the sum */
    size_t stem = strlen(info.name) - strlen(end);
    snprintf(info.name + stem, sizeof info.name - stem, "bias");
    return info;
}

bool layer_adapter(const struct model_config *model, int layer, struct param_info *ret)
{
    if (model->adapter_rows == 0) return false;
    *ret = param_matrix(layer, "adapter", model->adapter_rows, model->dim);
    ret->is_adapter = true;
    return true;
}

/* ---- tensor parallelism ---- */

static int64_t full_columns(const struct param_info *info)
{
    return info->dims == 2 ? info->shape[1] : 1;
}

void param_cut_shape(const struct param_info *info, int tp, int64_t *ret_rows, int64_t *ret_columns)
{
    *ret_rows = info->cut == CUT_ROWS ? info->shape[0] / tp : info->shape[0];
    *ret_columns = info->cut == CUT_COLUMNS ? info->shape[1] / tp : full_columns(info);
}

int64_t param_cut_element(const struct param_info *info, int tp, int me, int64_t element)
{
    int64_t rows, columns, whole = full_columns(info);
    param_cut_shape(info, tp, &rows, &columns);
    int64_t row = element / columns, column = element % columns;
    if (info->cut == CUT_COLUMNS) return row * whole + me * columns + column;
    if (info->cut != CUT_ROWS) return element;
    int64_t sections = info->sections > 0 ? info->sections : 1, of_section = rows / sections, section = row / of_section;
    return (section * of_section * tp + me * of_section + row % of_section) * whole + column;
}

void param_cut_copy(void *part, const void *whole, enum format storage, const struct param_info *info, int tp, int me,
                    int64_t first, int64_t count)
{
    size_t bytes = format_storage_bytes(storage);
    if (info->cut == CUT_NONE || tp == 1) {
        memcpy(part, (const char *)whole + (size_t)first * bytes, (size_t)count * bytes);
        return;
    }
    for (int64_t i = 0; i < count; i++)
        memcpy((char *)part + (size_t)i * bytes, (const char *)whole + (size_t)param_cut_element(info, tp, me, first + i) * bytes, bytes);
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

    bool as_pytorch = model->initial == INITIAL_PYTORCH;
    if (info->is_norm || (info->is_bias && !as_pytorch)) {
        param_fill(ret_values, info->is_norm ? 1.0 : 0.0);
        return;
    }
    bool uniform = as_pytorch && !info->is_embedding;
    double size = uniform ? 1.0 / sqrt((double)info->fan_in) : as_pytorch ? 1.0 : init_std;
    if (info->writes_residual && !as_pytorch)
        size *= 1.0 / sqrt(2.0 * (double)model->layers);
    struct random_stream stream = random_stream(seed, info->name);
    for (int64_t i = 0; i < count; i++) {
        double drawn = uniform ? 2 * random_unit_at(&stream, (uint64_t)i) - 1 : random_normal_at(&stream, (uint64_t)i);
        double value = size * drawn;
        format_set(ret_values.data, (size_t)i, ret_values.storage, format_round(FORMAT_FP32, value));
    }
}
