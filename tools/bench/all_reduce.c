/* all_reduce: microseconds for one ring all-reduce of fp32 among the ranks of one machine, message by message.
 *
 *   all_reduce RANKS ELEMENTS REPEATS
 *
 * Wall time on one thread, from rank 0's first call to its last return, over the number of calls. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "collectives/collectives.h"

static struct { int ranks, repeats; size_t elements; double seconds; } job;
static const struct site site = {"bench.reduce", SITE_COMMUNICATION, "bench", FACET_REDUCES, ""};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void body(struct rank *rank, void *argument)
{
    struct mesh mesh = {.axes = 1, .name = {"dp"}, .size = {job.ranks}};
    struct communicator *c = communicator_new(rank, &mesh);
    struct comm how = {.site = &site, .where = WHERE_NONE};
    struct buffer buffer = {.data = calloc(job.elements, sizeof(float)), .count = job.elements, .storage = FORMAT_FP32,
                            .wire = FORMAT_FP32};
    double start = 0;
    for (int i = -2; i < job.repeats; i++) {
        if (i == 0)
            start = now();
        all_reduce(c, communicator_group(c, "dp"), &how, buffer, REDUCE_SUM);
    }
    if (rank_id(rank) == 0)
        job.seconds = now() - start;
    free(buffer.data);
    communicator_free(c);
}

int main(int count, char **words)
{
    struct error error = {0};
    if (count != 4)
        return 2;
    job.ranks = (int)strtol(words[1], NULL, 10);
    job.elements = (size_t)strtol(words[2], NULL, 10);
    job.repeats = (int)strtol(words[3], NULL, 10);
    if (job.ranks < 1 || job.repeats < 1)
        return 2;
    struct machine_options options = {.ranks = job.ranks, .threads = 1};
    struct machine *machine = machine_new(&options, &error);
    if (!machine || machine_run(machine, body, NULL, &error) != MACHINE_FINISHED)
        return 2;
    machine_free(machine);
    printf("%.3f\n", 1e6 * job.seconds / job.repeats);
    return 0;
}
