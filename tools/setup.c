/* setup: see the header. */
#include "tools/setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
#include "model/ops.h"
#include "scenarios/check.h"
#include "scenarios/spelling.h"
#include "sim/arena.h"
#include "sim/coroutine.h"
#include "tools/guard.h"
#include "tools/interrupt.h"
#include "tools/output.h"

int setup_online_cpus(void)
{
    unsigned count = uv_available_parallelism();
    return count < 1 ? 1 : (int)count;
}

struct scenario_options setup_scenario(const struct options *options)
{
    return (struct scenario_options){
        .overrides_count = options->overrides_count, .overrides = options->overrides,
        .faults_count = options->faults_count, .faults = options->faults,
        .no_faults = options->no_faults, .seed_given = options->seed_given, .seed = options->seed,
        .watch = guard_watch(options->guard),
    };
}

static bool check_word(const char *word, struct error *error)
{
    const char *id = word[0] == '-' ? word + 1 : word;
    if (!strcmp(word, "default") || !strcmp(word, "deep") || check_find_by_id(id)) return true;
    int count = check_count();
    const char **names = memory_alloc((size_t)(count + 2) * sizeof *names);
    for (int i = 0; i < count; i++) names[i] = check_at(i)->id;
    names[count] = "default";
    names[count + 1] = "deep";
    char shown[FOREIGN_TEXT];
    error_input(error, "--checks: unknown check \"%s\"", foreign(id, shown));
    const char *near = spelling_nearest(id, names, count + 2);
    if (near) error_hint(error, "did you mean %s? hpsim checks lists all", near);
    else error_hint(error, "hpsim checks lists all; default and deep stand for sets of them");
    free(names);
    return false;
}

static bool check_words(const char *list, struct error *error)
{
    char *copy = memory_strdup(list), *rest = NULL;
    bool good = true;
    for (char *word = strtok_r(copy, ",", &rest); word && good; word = strtok_r(NULL, ",", &rest))
        good = check_word(word, error);
    free(copy);
    return good;
}

static bool coroutine_refused(const char *name, struct error *error)
{
    char shown[FOREIGN_TEXT], available[128] = "";
    const char *why = coroutine_backend_missing(name);
    for (int i = 0; coroutine_backend_at(i); i++) {
        size_t used = strlen(available);
        snprintf(available + used, sizeof available - used, "%s%s", i ? ", " : "", coroutine_backend_at(i));
    }
    error_input(error, "--coroutine \"%s\" is not in this build%s%s; available: %s", foreign(name, shown), why ? ": " : "",
                why ? why : "", available);
    return false;
}

bool setup_experiment(const struct options *options, const char *checks_default, int threads_default,
                      struct experiment_options *ret_experiment, struct error *error)
{
    if (options->coroutine && !coroutine_backend(options->coroutine)) return coroutine_refused(options->coroutine, error);
    if (!ops_get(FORMAT_FP32, options->cpu_path, options->gemm ? options->gemm : "fixed", error)) return false;
    if (options->checks && !check_words(options->checks, error)) return false;
    *ret_experiment = (struct experiment_options){
        .train = {.threads = options->threads ? options->threads : threads_default, .interleave = options->interleave,
                  .cpu_path = options->cpu_path, .gemm = options->gemm,
                  .coroutine = options->coroutine, .stop = interrupt_stop()},
        .checks = options->checks ? options->checks : checks_default,
    };
    return true;
}

bool setup_outputs(const struct options *options, struct error *error)
{
    const struct { const char *option, *path; } outputs[] = {
        {"json", options->json}, {"csv", options->csv}, {"dump", options->dump}, {"junit", options->junit},
    };
    int count = (int)(sizeof outputs / sizeof outputs[0]);
    for (int i = 0; i < count; i++) {
        for (int j = 0; j < i && outputs[i].path; j++) {
            if (!outputs[j].path || strcmp(outputs[i].path, outputs[j].path) != 0) continue;
            return error_input(error, "--%s and --%s both write to \"%s\"", outputs[j].option, outputs[i].option,
                               outputs[i].path);
        }
    }
    if (options->dump && !strcmp(options->dump, "-"))
        return error_input(error, "--dump needs a file, not standard output");
    if (options->dump && !output_is_replaceable(options->dump))
        return error_input(error, "cannot write --dump \"%s\": it is no regular file", options->dump);
    if (options->junit && !strcmp(options->junit, "-"))
        return error_input(error, "--junit needs a file, not standard output");
    for (int i = 0; i < count; i++) {
        if (!output_check(outputs[i].path, outputs[i].option, error)) return false;
    }
    return true;
}
