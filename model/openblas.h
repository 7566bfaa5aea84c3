/* openblas: OpenBLAS's matrix product, from a library that is loaded when it is first asked for.
 *
 * OpenBLAS chooses its kernels (the "core type") while it is loaded, and on a processor newer than itself can choose
 * ones without AVX, five times slower. So it isn't linked: OPENBLAS_CORETYPE is set to the core type of the CPU path
 * first, unless the user has set it. One core type a process; it decides over the bits of a product. */
#ifndef MODEL_OPENBLAS_H
#define MODEL_OPENBLAS_H

#include <stdbool.h>
#include <stdint.h>
#include "sim/error.h"

/* Loads it once a process, for this CPU path ("avx512", "avx2", "neon", "plain"), with one thread a call; later
 * calls are free and may come from any thread. False and an error where it isn't installed. */
bool openblas_load(const char *cpu_path, struct error *error);
/* As struct ops has it; after openblas_load. */
void openblas_gemm_f32(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda,
                       const void *b, int64_t ldb, bool accumulate, void *c, int64_t ldc);
void openblas_gemm_f64(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const void *a, int64_t lda,
                       const void *b, int64_t ldb, bool accumulate, void *c, int64_t ldc);
/* "<core type>; <its own description of how it was built>"; NULL while it isn't loaded. */
const char *openblas_core(void);

#endif
