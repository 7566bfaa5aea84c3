/* gemm: the fixed-order matrix product beside OpenBLAS, one thread, in one process and by turns.
 *
 *   gemm [--fp64] [--quick] [--path P] [--core TYPE]... [SIZE]...
 *   gemm --ours [--fp64] [--path P] [SIZE]...          only our speed: a line "SIZE GFLOP/s" each, no transposes
 *
 * For each size n and each transpose, n x n x n: a round is a batch of ours, then a batch of OpenBLAS's, each long
 * enough for the clock; the figure is the median over rounds of OpenBLAS's time over ours, so above 1 ours is
 * faster. A core type can be set only before OpenBLAS is loaded, so each is measured in a child process of its own,
 * and the table has the smallest figure: ours against the best core type there is. Between batches the matrices stay
 * where the cache has them, for both alike. The last column is our speed in GFLOP/s, the best round of the four. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "model/openblas.h"
#include "model/ops.h"

enum { SIZES_MAX = 64, CORES_MAX = 8, ROUNDS_MAX = 64 };
static const int sizes_default[] = {8, 12, 16, 24, 32, 48, 61, 64, 96, 127, 128, 129, 192, 256, 333, 512, 768, 1024};
static const char *const cores_default[] = {"SkylakeX", "Haswell", "Zen"};

struct setup {
    enum format format;
    const char *path;
    int rounds;
    double batch_s;
    int sizes[SIZES_MAX], sizes_count;
    const char *cores[CORES_MAX];
    int cores_count;
    bool ours_only;
};
struct figure { double ratio, gflops; }; /* of a core, a size and a transpose */
typedef void gemm(bool, bool, int64_t, int64_t, int64_t, const void *, int64_t, const void *, int64_t, bool, void *, int64_t);

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double batch(gemm *run, int mode, int n, const void *a, const void *b, void *c, int times)
{
    double start = now();
    for (int i = 0; i < times; i++)
        run(mode & 1, mode & 2, n, n, n, a, n, b, n, false, c, n);
    return now() - start;
}

static void *matrix(int n, enum format format)
{
    size_t count = (size_t)n * (size_t)n;
    void *data = aligned_alloc(64, (count * 8 + 63) / 64 * 64);
    if (!data)
        exit(2);
    for (size_t i = 0; i < count; i++) {
        double value = (double)(i * 2654435761u % 1000003) / 1000003 - 0.5;
        if (format == FORMAT_FP64)
            ((double *)data)[i] = value;
        else
            ((float *)data)[i] = (float)value;
    }
    return data;
}

static struct figure measure(const struct setup *setup, gemm *ours, gemm *theirs, int mode, int n)
{
    void *a = matrix(n, setup->format), *b = matrix(n, setup->format), *c = matrix(n, setup->format);
    double ratios[ROUNDS_MAX], best = 1e9;
    batch(theirs, mode, n, a, b, c, 1);
    double once = batch(ours, mode, n, a, b, c, 3) / 3;
    int times = (int)(setup->batch_s / once) + 1;
    for (int r = 0; r < setup->rounds; r++) {
        double our_s = batch(ours, mode, n, a, b, c, times), their_s = batch(theirs, mode, n, a, b, c, times);
        ratios[r] = their_s / our_s;
        best = our_s < best ? our_s : best;
    }
    qsort(ratios, (size_t)setup->rounds, sizeof *ratios, ascending);
    free(a), free(b), free(c);
    return (struct figure){ratios[setup->rounds / 2], 2e-9 * n * n * n * times / best};
}

/* In a child: all sizes and transposes against one core type. False where OpenBLAS isn't there. */
static bool measure_core(const struct setup *setup, const char *core, struct figure *figures, char *ret_core)
{
    struct error error = {0};
    setenv("OPENBLAS_CORETYPE", core, 1);
    const struct ops *ours = ops_get(setup->format, setup->path, "fixed", &error);
    const struct ops *theirs = ops_get(setup->format, setup->path, "openblas", &error);
    if (!ours || !theirs) {
        fprintf(stderr, "gemm: %s\n", error.message);
        return false;
    }
    snprintf(ret_core, 256, "%s", ops_openblas_core());
    for (int s = 0; s < setup->sizes_count; s++)
        for (int mode = 0; mode < 4; mode++)
            figures[s * 4 + mode] = measure(setup, ours->gemm, theirs->gemm, mode, setup->sizes[s]);
    return true;
}

static void table(const struct setup *setup, const struct figure *figures)
{
    printf("%6s %8s %8s %8s %8s   %s\n", "size", "A B", "A' B", "A B'", "A' B'", "ours, GFLOP/s");
    double small = 1e9, large = 1e9;
    for (int s = 0; s < setup->sizes_count; s++) {
        printf("%6d", setup->sizes[s]);
        double gflops = 0;
        for (int mode = 0; mode < 4; mode++) {
            struct figure least = {1e9, 0};
            for (int core = 0; core < setup->cores_count; core++) {
                struct figure f = figures[(core * SIZES_MAX + s) * 4 + mode];
                if (f.ratio > 0 && f.ratio < least.ratio)
                    least = f;
            }
            gflops = least.gflops > gflops ? least.gflops : gflops;
            double *limit = setup->sizes[s] <= 64 ? &small : &large;
            *limit = least.ratio < *limit ? least.ratio : *limit;
            printf(" %8.2f", least.ratio);
        }
        printf("   %.0f\n", gflops);
    }
    if (small < 1e9)
        printf("smallest ratio up to 64:  %.2f   limit 1.0\n", small);
    if (large < 1e9)
        printf("smallest ratio above 64:  %.2f   limit 0.9\n", large);
}

static void parse(struct setup *setup, int count, char **words)
{
    for (int i = 1; i < count; i++) {
        if (!strcmp(words[i], "--fp64"))
            setup->format = FORMAT_FP64;
        else if (!strcmp(words[i], "--ours"))
            setup->ours_only = true;
        else if (!strcmp(words[i], "--quick"))
            setup->rounds = 7, setup->batch_s = 5e-4;
        else if (!strcmp(words[i], "--path") && i + 1 < count)
            setup->path = words[++i];
        else if (!strcmp(words[i], "--core") && i + 1 < count && setup->cores_count < CORES_MAX)
            setup->cores[setup->cores_count++] = words[++i];
        else if (strtol(words[i], NULL, 10) > 0 && setup->sizes_count < SIZES_MAX)
            setup->sizes[setup->sizes_count++] = (int)strtol(words[i], NULL, 10);
        else {
            fprintf(stderr, "usage: gemm [--fp64] [--quick] [--ours] [--path P] [--core TYPE]... [SIZE]...\n");
            exit(2);
        }
    }
    for (size_t i = 0; setup->cores_count == 0 && i < sizeof cores_default / sizeof *cores_default; i++)
        setup->cores[i] = cores_default[i];
    if (setup->cores_count == 0)
        setup->cores_count = (int)(sizeof cores_default / sizeof *cores_default);
    for (size_t i = 0; setup->sizes_count == 0 && i < sizeof sizes_default / sizeof *sizes_default; i++)
        setup->sizes[i] = sizes_default[i];
    if (setup->sizes_count == 0)
        setup->sizes_count = (int)(sizeof sizes_default / sizeof *sizes_default);
}

int main(int count, char **words)
{
    struct setup setup = {.format = FORMAT_FP32, .rounds = 15, .batch_s = 2e-3};
    parse(&setup, count, words);
    if (setup.ours_only) {
        struct error error = {0};
        const struct ops *ops = ops_get(setup.format, setup.path, "fixed", &error);
        for (int s = 0; ops && s < setup.sizes_count; s++)
            printf("%d %.2f\n", setup.sizes[s], measure(&setup, ops->gemm, ops->gemm, 0, setup.sizes[s]).gflops);
        return ops ? 0 : 2;
    }
    size_t figures_bytes = sizeof(struct figure) * CORES_MAX * SIZES_MAX * 4;
    char *shared = mmap(NULL, figures_bytes + CORES_MAX * 256, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return 2;
    struct figure *figures = (void *)shared;
    printf("gemm, %s, OpenBLAS's time over ours; against the best of:\n", setup.format == FORMAT_FP64 ? "fp64" : "fp32");
    fflush(stdout);
    for (int core = 0; core < setup.cores_count; core++) {
        char *name = shared + figures_bytes + core * 256;
        pid_t child = fork();
        if (child == 0)
            _exit(measure_core(&setup, setup.cores[core], figures + core * SIZES_MAX * 4, name) ? 0 : 2);
        int status = 0;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            return 2;
        printf("  %s\n", name);
    }
    table(&setup, figures);
    return 0;
}
