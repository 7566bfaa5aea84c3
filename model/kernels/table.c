/* table: this variant's functions as a `struct ops`. */
#include "model/kernels/variant.h"
#include "model/ops.h"

#define TABLE_TEXT_2(text) #text
#define TABLE_TEXT(text) TABLE_TEXT_2(text)

const struct ops FN(ops) = {
    .cpu_path = TABLE_TEXT(VARIANT_CPU),
    .gemm_name = "fixed",
    .storage = VARIANT_STORAGE,
#define OP(type, name, parameters) .name = FN(name),
#include "model/ops.def"
#undef OP
};
