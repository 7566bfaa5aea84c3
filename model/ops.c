/* ops: choosing a table of kernel operations by storage, CPU path and GEMM.
 *
 * kernels/ is compiled once a variant; each has its table there. "fixed" takes them as they are (all give the
 * same bits). "openblas" is the same table with gemm replaced: faster on large matrices, its bits depend on
 * OpenBLAS's core type and on the shape of the call. One thread a call. */
#include "model/ops.h"

#include <pthread.h>
#include <string.h>
#include "model/kernels/workspace.h"
#include "sim/assertion.h"

#if defined(__x86_64__) && !defined(HPSIM_NO_X86_KERNELS)
#define OPS_X86 1
#else
#define OPS_X86 0
#endif

#if defined(__has_include) && !defined(HPSIM_NO_OPENBLAS)
#if __has_include(<cblas.h>)
#include <cblas.h>
#endif
#endif
#ifdef OPENBLAS_VERSION /* not some other library's cblas.h */
#define OPS_OPENBLAS 1
#else
#define OPS_OPENBLAS 0
#endif

void *kernel_workspace(void)
{
    static _Thread_local _Alignas(64) char bytes[KERNEL_WORKSPACE_BYTES];
    return bytes;
}

extern const struct ops ops_f32_plain, ops_f64_plain;
#if OPS_X86
extern const struct ops ops_f32_avx2, ops_f64_avx2, ops_f32_avx512, ops_f64_avx512;
#endif

/* Best first. */
static const struct path { const char *name; const struct ops *f32, *f64; } paths[] = {
#if OPS_X86
    {"avx512", &ops_f32_avx512, &ops_f64_avx512},
    {"avx2", &ops_f32_avx2, &ops_f64_avx2},
#endif
    {"plain", &ops_f32_plain, &ops_f64_plain},
};
enum { PATHS = sizeof(paths) / sizeof(*paths) };

static bool path_available(const struct path *path)
{
#if OPS_X86
    if (strcmp(path->name, "avx512") == 0)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("fma");
    if (strcmp(path->name, "avx2") == 0)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    (void)path;
    return true;
}

#if OPS_OPENBLAS
/* cblas wants a leading dimension of at least 1 and ints. */
static int blas_int(int64_t value)
{
    ASSERT(value >= 0 && value <= INT32_MAX);
    return (int)value;
}

static int leading(int64_t value)
{
    return blas_int(value > 0 ? value : 1);
}

#define OPS_OPENBLAS_GEMM(suffix, real, function) \
    static void gemm_openblas_##suffix(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, \
                                       const void *a, int64_t lda, const void *b, int64_t ldb, bool accumulate, \
                                       void *c, int64_t ldc) \
    { \
        if (k == 0 && !accumulate) \
            for (int64_t i = 0; i < m; i++) \
                for (int64_t j = 0; j < n; j++) \
                    ((real *)c)[i * ldc + j] = 0; \
        if (m == 0 || n == 0 || k == 0) \
            return; \
        function(CblasRowMajor, transpose_a ? CblasTrans : CblasNoTrans, transpose_b ? CblasTrans : CblasNoTrans, \
                 blas_int(m), blas_int(n), blas_int(k), 1, a, leading(lda), b, leading(ldb), accumulate ? 1 : 0, c, \
                 leading(ldc)); \
    }
OPS_OPENBLAS_GEMM(f32, float, cblas_sgemm)
OPS_OPENBLAS_GEMM(f64, double, cblas_dgemm)

static struct ops openblas_f32[PATHS], openblas_f64[PATHS];
static pthread_once_t openblas_once = PTHREAD_ONCE_INIT;

static void openblas_fill(void)
{
    openblas_set_num_threads(1);
    for (int i = 0; i < PATHS; i++) {
        openblas_f32[i] = *paths[i].f32;
        openblas_f64[i] = *paths[i].f64;
        openblas_f32[i].gemm_name = openblas_f64[i].gemm_name = "openblas";
        openblas_f32[i].gemm = gemm_openblas_f32;
        openblas_f64[i].gemm = gemm_openblas_f64;
    }
}
#endif

/* The index in paths[], or -1 and an error. */
static int path_find(const char *cpu_path, struct error *error)
{
    char available[64] = "";
    for (int i = 0; i < PATHS; i++) {
        if (!path_available(&paths[i]))
            continue;
        if (!cpu_path || strcmp(cpu_path, paths[i].name) == 0)
            return i;
        strcat(available, *available ? ", " : "");
        strcat(available, paths[i].name);
    }
    bool known = strcmp(cpu_path, "avx512") == 0 || strcmp(cpu_path, "avx2") == 0;
    if (known)
        error_input(error, "this machine or build has no CPU path \"%s\"; available: %s", cpu_path, available);
    else
        error_input(error, "unknown CPU path \"%s\"; available: %s", cpu_path, available);
    return -1;
}

const struct ops *ops_get(enum format storage, const char *cpu_path, const char *gemm, struct error *error)
{
    ASSERT(storage == FORMAT_FP32 || storage == FORMAT_FP64);
    int path = path_find(cpu_path, error);
    if (path < 0)
        return NULL;
    if (strcmp(gemm, "fixed") == 0)
        return storage == FORMAT_FP32 ? paths[path].f32 : paths[path].f64;
#if OPS_OPENBLAS
    if (strcmp(gemm, "openblas") == 0) {
        pthread_once(&openblas_once, openblas_fill);
        return storage == FORMAT_FP32 ? &openblas_f32[path] : &openblas_f64[path];
    }
    error_input(error, "unknown gemm \"%s\"; available: fixed, openblas", gemm);
#else
    if (strcmp(gemm, "openblas") == 0)
        error_input(error, "this build has no gemm \"openblas\"; available: fixed");
    else
        error_input(error, "unknown gemm \"%s\"; available: fixed", gemm);
#endif
    return NULL;
}

const char *ops_openblas_core(void)
{
#if OPS_OPENBLAS
    return openblas_get_corename();
#else
    return NULL;
#endif
}
