/* ops: the table of kernel operations, one a variant. See ops.def for what each does. */
#ifndef MODEL_OPS_H
#define MODEL_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "model/attention_view.h"
#include "sim/error.h"
#include "sim/tensor.h"

struct ops {
    const char *cpu_path;        /* "avx512", "avx2", "plain" */
    const char *gemm_name;       /* "fixed", "openblas" */
    enum format storage;
#define OP(type, name, parameters) type (*name) parameters;
#include "model/ops.def"
#undef OP
};

/* The table for a storage (fp32, fp64), a CPU path (NULL: the best this machine has) and a GEMM
 * ("fixed", "openblas"). NULL and an error where this machine or build does not have it. Static life time.
 * Asked for "openblas" it loads the library; so a command asks once before it starts threads. */
const struct ops *ops_get(enum format storage, const char *cpu_path, const char *gemm, struct error *error);
/* OpenBLAS's core type and build as it reports them; NULL where it is not loaded. */
const char *ops_openblas_core(void);

#endif
