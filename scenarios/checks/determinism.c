/* determinism: what a run computes follows from the scenario alone.
 *
 * The parallel run once more in another order of ready ranks, with another number of threads and another coroutine
 * backend, and once more on another CPU path: each digest over losses, gradients, parameters and communication must be
 * the run's. Limit: exact. No site: it is hpsim's own promise, and a fault that breaks it (a buffer read before it
 * has arrived) is named by the check that sees it. Cost: a run for each; so only with "deep", or where it is asked
 * for. */
#include "scenarios/check.h"
#include "scenarios/facts.h"

static void run(const struct evidence *e, struct check_output *output)
{
    if (e->repeats_count == 0) {
        check_skip(output, "the run was made once only; --checks deep repeats it");
        return;
    }
    check_value(output, 0, 0);
    for (int i = 0; i < e->repeats_count; i++) {
        const struct repeat *repeat = &e->repeats[i];
        if (repeat->digest[0] == e->parallel->digest[0] && repeat->digest[1] == e->parallel->digest[1]) continue;
        struct finding finding = finding_new(NULL, place_at(-1, -1, -1));
        finding_pattern(&finding, "not-repeatable");
        finding_say(&finding, "the same scenario gives another digest with %s", repeat->what);
        check_value(output, 1, 0);
        check_find(output, &finding);
    }
}

const struct check check_determinism = {
    .id = "determinism",
    .proves = "two runs of one scenario give one digest, whatever the order of ready ranks, the threads, the coroutine "
              "backend and the CPU path",
    .tier = "deep",
    .run = run,
    .workloads = CHECK_IN(WORKLOAD_TRAIN) | CHECK_IN(WORKLOAD_ATTENTION) | CHECK_IN(WORKLOAD_DENOISE),
};
