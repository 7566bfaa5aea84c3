/* switch: what one change of stacks costs, in nanoseconds, on each coroutine backend of this build.
 *
 *   switch [--rounds N]
 *
 * A coroutine that only parks is resumed again and again: two switches a turn. Backends take turns, a batch each;
 * the figure is the median over rounds, the smallest in brackets, of the thread's own CPU time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sim/coroutine.h"

enum { BACKENDS_MAX = 8, ROUNDS_MAX = 201, TURNS = 5000 };

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void park_forever(void *argument)
{
    struct coroutine **self = argument;
    for (;;)
        coroutine_park(*self);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int count, char **words)
{
    int rounds = count == 3 && !strcmp(words[1], "--rounds") ? (int)strtol(words[2], NULL, 10) : 31, backends = 0;
    struct stack_pool *pools[BACKENDS_MAX];
    struct coroutine *coroutines[BACKENDS_MAX];
    static double costs[BACKENDS_MAX][ROUNDS_MAX];
    struct error error = {0};
    if (rounds < 1 || rounds > ROUNDS_MAX)
        return 2;
    for (; backends < BACKENDS_MAX && coroutine_backend_at(backends); backends++) {
        pools[backends] = stack_pool_new(64 * 1024, coroutine_backend_at(backends));
        coroutines[backends] = coroutine_new(pools[backends], park_forever, &coroutines[backends], &error);
        if (!coroutines[backends])
            return 2;
    }
    for (int r = 0; r < rounds; r++) {
        for (int b = 0; b < backends; b++) {
            double start = now();
            for (int i = 0; i < TURNS; i++)
                coroutine_resume(coroutines[b]);
            costs[b][r] = (now() - start) * 1e9 / (2 * TURNS);
        }
    }
    printf("one switch, ns: median (smallest)        limit 50 for the default, %s\n", coroutine_backend_at(0));
    for (int b = 0; b < backends; b++) {
        qsort(costs[b], (size_t)rounds, sizeof(double), ascending);
        printf("  %-12s %8.1f (%.1f)\n", coroutine_backend_at(b), costs[b][rounds / 2], costs[b][0]);
        coroutine_free(coroutines[b]);
        stack_pool_free(pools[b]);
    }
    return 0;
}
