/* ops: choosing a table of kernel operations by storage, CPU path and GEMM.
 *
 * kernels/ is compiled once a variant; each has its table there. "fixed" takes them as they are (all give the
 * same bits). "openblas" is the same table with gemm replaced: its bits depend on OpenBLAS's core type and on the
 * shape of the call (openblas.h). One thread a call. */
#include "model/ops.h"

#include <pthread.h>
#include <string.h>
#include "model/kernels/workspace.h"
#include "model/openblas.h"
#include "sim/assertion.h"

#if defined(__x86_64__) && !defined(HPSIM_NO_X86_KERNELS)
#define OPS_X86 1
#else
#define OPS_X86 0
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

static struct ops openblas_f32[PATHS], openblas_f64[PATHS];
static pthread_once_t openblas_once = PTHREAD_ONCE_INIT;

static void openblas_fill(void)
{
    for (int i = 0; i < PATHS; i++) {
        openblas_f32[i] = *paths[i].f32;
        openblas_f64[i] = *paths[i].f64;
        openblas_f32[i].gemm_name = openblas_f64[i].gemm_name = "openblas";
        openblas_f32[i].gemm = openblas_gemm_f32;
        openblas_f64[i].gemm = openblas_gemm_f64;
    }
}

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
    bool known = strcmp(cpu_path, "avx512") == 0 || strcmp(cpu_path, "avx2") == 0 || strcmp(cpu_path, "neon") == 0; /* reserved */
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
    if (strcmp(gemm, "openblas") == 0) {
        if (!openblas_load(paths[path].name, error))
            return NULL;
        pthread_once(&openblas_once, openblas_fill);
        return storage == FORMAT_FP32 ? &openblas_f32[path] : &openblas_f64[path];
    }
    error_input(error, "unknown gemm \"%s\"; available: fixed, openblas", gemm);
    return NULL;
}

const char *ops_openblas_core(void)
{
    return openblas_core();
}
