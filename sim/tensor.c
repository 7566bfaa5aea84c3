/* tensor: see tensor.h. */
#include "sim/tensor.h"

#include "sim/assertion.h"

static struct tensor make(void *data, enum format storage, int dims, const int64_t *shape)
{
    ASSERT(storage == FORMAT_FP32 || storage == FORMAT_FP64);
    struct tensor t = {.data = data, .storage = storage, .dims = dims};
    int64_t stride = 1;
    for (int i = dims - 1; i >= 0; i--) {
        ASSERT(shape[i] >= 0);
        t.shape[i] = shape[i];
        t.stride[i] = stride;
        stride *= shape[i];
    }
    return t;
}

struct tensor tensor_1d(void *data, enum format storage, int64_t n0)
{
    return make(data, storage, 1, (int64_t[]){n0});
}

struct tensor tensor_2d(void *data, enum format storage, int64_t n0, int64_t n1)
{
    return make(data, storage, 2, (int64_t[]){n0, n1});
}

struct tensor tensor_3d(void *data, enum format storage, int64_t n0, int64_t n1, int64_t n2)
{
    return make(data, storage, 3, (int64_t[]){n0, n1, n2});
}

struct tensor tensor_4d(void *data, enum format storage, int64_t n0, int64_t n1, int64_t n2, int64_t n3)
{
    return make(data, storage, 4, (int64_t[]){n0, n1, n2, n3});
}

struct tensor tensor_rows(struct tensor t, int64_t first, int64_t count)
{
    ASSERT(t.dims >= 1 && first >= 0 && count >= 0 && first + count <= t.shape[0]);
    if (t.data) t.data = (char *)t.data + (size_t)(first * t.stride[0]) * format_storage_bytes(t.storage);
    t.shape[0] = count;
    return t;
}

int64_t tensor_count(struct tensor t)
{
    int64_t count = 1;
    for (int i = 0; i < t.dims; i++) count *= t.shape[i];
    return count;
}

int64_t tensor_bytes(struct tensor t)
{
    return tensor_count(t) * (int64_t)format_storage_bytes(t.storage);
}

bool tensor_is_dense(struct tensor t)
{
    int64_t stride = 1;
    for (int i = t.dims - 1; i >= 0; i--) {
        if (t.shape[i] != 1 && t.stride[i] != stride) return false;
        stride *= t.shape[i];
    }
    return true;
}
