/* tensor: a view of numbers in memory that somebody else owns. Row-major; up to four dimensions. */
#ifndef SIM_TENSOR_H
#define SIM_TENSOR_H

#include <stdint.h>
#include "sim/format.h"

struct tensor {
    void *data;
    enum format storage;      /* FORMAT_FP32 or FORMAT_FP64 */
    int dims;
    int64_t shape[4];
    int64_t stride[4];        /* in elements; the last is 1 for every view that a layer takes */
};

struct tensor tensor_1d(void *data, enum format storage, int64_t n0);
struct tensor tensor_2d(void *data, enum format storage, int64_t n0, int64_t n1);
struct tensor tensor_3d(void *data, enum format storage, int64_t n0, int64_t n1, int64_t n2);
struct tensor tensor_4d(void *data, enum format storage, int64_t n0, int64_t n1, int64_t n2, int64_t n3);
struct tensor tensor_rows(struct tensor t, int64_t first, int64_t count); /* along dimension 0 */
int64_t tensor_count(struct tensor t);
int64_t tensor_bytes(struct tensor t);      /* of the stored numbers */
bool tensor_is_dense(struct tensor t);

#endif
