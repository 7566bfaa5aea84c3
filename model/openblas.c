/* openblas: see the header. The prototypes are cblas's (row-major 101, no transpose 111, transpose 112), so that
 * neither its header nor its import library is needed to build.
 *
 * Built single-threaded and without USE_LOCKING, as Debian's serial flavour is, OpenBLAS is not safe to call from
 * two threads: both may be given the same packing buffer, and the products are wrong. Such a library is called by
 * one thread at a time; the flavour with threads (libopenblas0-pthread), told to use one, by all at once. */
#include "model/openblas.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "sim/assertion.h"

enum { ROW_MAJOR = 101, NO_TRANSPOSE = 111, TRANSPOSE = 112 };

#define LIBRARY "libopenblas.so.0"

static struct {
    pthread_mutex_t mutex;
    bool loaded, one_at_a_time;
    pthread_mutex_t calling;
    char core[256];
    void (*sgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, float alpha, const float *a, int lda,
                  const float *b, int ldb, float beta, float *c, int ldc);
    void (*dgemm)(int order, int transpose_a, int transpose_b, int m, int n, int k, double alpha, const double *a,
                  int lda, const double *b, int ldb, double beta, double *c, int ldc);
} library = {.mutex = PTHREAD_MUTEX_INITIALIZER, .calling = PTHREAD_MUTEX_INITIALIZER};

/* The best core type of 0.3.21 that needs no more than the path does. The newer ones (Cooperlake, Sapphire Rapids)
 * multiply fp32 and fp64 with SkylakeX's kernels. */
static const char *core_type(const char *cpu_path)
{
    if (strcmp(cpu_path, "avx512") == 0)
        return "SkylakeX";
    if (strcmp(cpu_path, "avx2") == 0)
        return "Haswell";
#if defined(__x86_64__)
    return __builtin_cpu_supports("sse4.2") ? "Nehalem" : "Prescott";
#else
    return NULL; /* what it finds itself */
#endif
}

/* Sets a variable for the time of loading; false if the user's own stands. */
static bool lend(const char *name, const char *value)
{
    return value && !getenv(name) && setenv(name, value, 0) == 0;
}

static bool find(void *handle, const char *name, void *ret_function, struct error *error)
{
    void *symbol = dlsym(handle, name);
    memcpy(ret_function, &symbol, sizeof symbol); /* ISO C has no cast from data to function */
    return symbol || error_input(error, "%s has no %s: it is not OpenBLAS", LIBRARY, name);
}

static bool load(const char *cpu_path, struct error *error)
{
    const bool core = lend("OPENBLAS_CORETYPE", core_type(cpu_path)), threads = lend("OPENBLAS_NUM_THREADS", "1");
    void *handle = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    const char *why = handle ? NULL : dlerror();
    if (core)
        unsetenv("OPENBLAS_CORETYPE");
    if (threads)
        unsetenv("OPENBLAS_NUM_THREADS");
    if (!handle) {
        error_input(error, "gemm \"openblas\": cannot load OpenBLAS: %s", why ? why : LIBRARY);
        error_hint(error, "apt install libopenblas0-serial, or use gemm \"fixed\"");
        return false;
    }
    void (*set_threads)(int) = NULL;
    char *(*corename)(void) = NULL, *(*config)(void) = NULL;
    if (!find(handle, "cblas_sgemm", &library.sgemm, error) || !find(handle, "cblas_dgemm", &library.dgemm, error) ||
        !find(handle, "openblas_set_num_threads", &set_threads, error) ||
        !find(handle, "openblas_get_corename", &corename, error) ||
        !find(handle, "openblas_get_config", &config, error)) {
        dlclose(handle);
        return false;
    }
    set_threads(1);
    snprintf(library.core, sizeof library.core, "%s; %s", corename(), config());
    for (size_t length = strlen(library.core); length > 0 && library.core[length - 1] == ' '; length--)
        library.core[length - 1] = '\0';
    library.one_at_a_time = strstr(library.core, "SINGLE_THREADED") && !strstr(library.core, "USE_LOCKING");
    return library.loaded = true; /* and stays so until the process ends */
}

bool openblas_load(const char *cpu_path, struct error *error)
{
    pthread_mutex_lock(&library.mutex);
    bool loaded = library.loaded || load(cpu_path, error);
    pthread_mutex_unlock(&library.mutex);
    return loaded;
}

const char *openblas_core(void)
{
    pthread_mutex_lock(&library.mutex);
    const char *core = library.loaded ? library.core : NULL;
    pthread_mutex_unlock(&library.mutex);
    return core;
}

/* cblas wants ints, and leading dimensions of at least 1. */
static int blas_int(int64_t value)
{
    ASSERT(value >= 0 && value <= INT32_MAX);
    return (int)value;
}

static int leading(int64_t value)
{
    return blas_int(value > 0 ? value : 1);
}

#define OPENBLAS_GEMM(suffix, real, function) \
    void openblas_gemm_##suffix(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const void *a, \
                                int64_t lda, const void *b, int64_t ldb, bool accumulate, void *c, int64_t ldc) \
    { \
        if (k == 0 && !accumulate) \
            for (int64_t i = 0; i < m; i++) \
                for (int64_t j = 0; j < n; j++) \
                    ((real *)c)[i * ldc + j] = 0; \
        if (m == 0 || n == 0 || k == 0) \
            return; \
        if (library.one_at_a_time) \
            pthread_mutex_lock(&library.calling); \
        library.function(ROW_MAJOR, transpose_a ? TRANSPOSE : NO_TRANSPOSE, transpose_b ? TRANSPOSE : NO_TRANSPOSE, \
                         blas_int(m), blas_int(n), blas_int(k), 1, a, leading(lda), b, leading(ldb), \
                         accumulate ? 1 : 0, c, leading(ldc)); \
        if (library.one_at_a_time) \
            pthread_mutex_unlock(&library.calling); \
    }
OPENBLAS_GEMM(f32, float, sgemm)
OPENBLAS_GEMM(f64, double, dgemm)
