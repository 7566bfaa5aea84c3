/* libhpsim: the functions of hpsim.h that a program links with. The same path as `hpsim run`, from words of a command line to
 * the JSON of its report, so that both give the same. */
#include <hpsim.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/arena.h"
#include "tools/command.h"
#include "tools/guard.h"
#include "tools/report/report.h"
#include "tools/setup.h"

/* One call. */
struct run {
    const struct options *options;
    FILE *json;                    /* where the child of a guarded run leaves its result; NULL: into text */
    char *text, error[2560];
};

static int fail(struct run *run, const struct error *error)
{
    error_text(error, run->error, sizeof run->error);
    return error->kind == ERROR_NONE ? EXIT_OWN_FAULT : (int)error->kind;
}

static int give(struct run *run, const struct result *result, const struct experiment_options *experiment)
{
    struct report report = {result, experiment, true, false};
    run->text = report_json(&report);
    return report_exit_status(result);
}

static int run_scenario(struct run *run, struct guard_page *page)
{
    struct error error = {0};
    struct experiment_options experiment;
    const struct options *options = run->options;
    if (!setup_experiment(options, "default", 1, &experiment, &error)) return fail(run, &error);
    experiment.train.stop = NULL;  /* signals are the program's affair */
    struct scenario_options wanted = setup_scenario(options);
    wanted.watch = guard_watch(page);
    struct scenario *scenario = scenario_load(options->arguments[0], &wanted, &error);
    if (!scenario) return fail(run, &error);
    guard_note_scenario(page, scenario);
    struct result *result = experiment_run(scenario, &experiment, &error);
    int status = result ? give(run, result, &experiment) : fail(run, &error);
    result_free(result);
    scenario_free(scenario);
    return status;
}

/* In the child: the result as text into the file, an error into the page. */
static int run_watched(struct guard_page *page, void *context)
{
    struct run *run = context;
    int status = run_scenario(run, page);
    snprintf(guard_payload(page), GUARD_PAYLOAD, "%s", run->error);
    bool good = !run->text || (fputs(run->text, run->json) >= 0 && fflush(run->json) == 0);
    return good ? status : EXIT_OWN_FAULT;
}

static char *read_back(FILE *file)
{
    struct stat status;
    if (fstat(fileno(file), &status) != 0 || status.st_size == 0) return NULL;
    char *text = memory_alloc((size_t)status.st_size + 1);
    ssize_t got = pread(fileno(file), text, (size_t)status.st_size, 0);
    text[got > 0 ? got : 0] = 0;
    return text;
}

static int run_guarded(struct run *run)
{
    struct guard_result how;
    struct error error = {0};
    struct experiment_options experiment;
    run->json = tmpfile();
    if (!run->json) {
        snprintf(run->error, sizeof run->error, "no temporary file for a result could be made");
        return EXIT_OWN_FAULT;
    }
    struct guard_page *page = guard_run(run_watched, run, NULL, &how);
    int status = how.status;
    struct result *result = how.end == GUARD_PLUGIN ? guard_result_new(page, &how) : NULL;
    if (result && setup_experiment(run->options, "default", 1, &experiment, &error)) status = give(run, result, &experiment);
    else if (how.end == GUARD_ENDED) run->text = read_back(run->json);
    if (!run->text) snprintf(run->error, sizeof run->error, "%.2500s", how.message[0] ? how.message : page ? (const char *)guard_payload(page) : "");
    guard_result_free(result);
    guard_done(page);
    fclose(run->json);
    return status;
}

/* The words that `hpsim run` would be given. */
static int make_words(const char *scenario, const struct hpsim_run_options *from, char **words, char numbers[2][32])
{
    int count = 0;
    words[count++] = (char *)(uintptr_t)scenario;
    for (int i = 0; from && i < from->set_count; i++) {
        words[count++] = (char *)(uintptr_t)"--set";
        words[count++] = (char *)(uintptr_t)from->set[i];
    }
    if (from && from->threads > 0) {
        snprintf(numbers[0], sizeof numbers[0], "%d", from->threads);
        words[count++] = (char *)(uintptr_t)"--threads";
        words[count++] = numbers[0];
    }
    if (from && from->interleave > 0) {
        snprintf(numbers[1], sizeof numbers[1], "%llu", (unsigned long long)from->interleave);
        words[count++] = (char *)(uintptr_t)"--interleave";
        words[count++] = numbers[1];
    }
    if (from && from->checks) {
        words[count++] = (char *)(uintptr_t)"--checks";
        words[count++] = (char *)(uintptr_t)from->checks;
    }
    return count;
}

static int run_options(struct run *run, const char *scenario, const struct hpsim_run_options *from)
{
    struct error error = {0};
    struct options options = {0};
    char numbers[2][32];
    char **words = memory_alloc((2 * (size_t)(from ? from->set_count : 0) + 8) * sizeof *words);
    int count = make_words(scenario, from, words, numbers), status;
    run->options = &options;
    if (!options_parse(&options, "run", OPTION_BIT(SET) | OPTION_BIT(THREADS) | OPTION_BIT(INTERLEAVE) | OPTION_BIT(CHECKS), count, words, &error)) {
        status = fail(run, &error);
    } else if (options.arguments_count != 1) {
        error_input(&error, "no scenario");
        status = fail(run, &error);
    } else {
        struct scenario_options wanted = setup_scenario(&options);
        status = scenario_has_plugin(scenario, &wanted) ? run_guarded(run) : run_scenario(run, NULL);
    }
    options_done(&options);
    free(words);
    return status;
}

/* Options of a caller that was compiled with another version: what it has no room for is not given. */
static bool take_options(const struct hpsim_run_options *from, struct hpsim_run_options *to)
{
    *to = (struct hpsim_run_options){.size = sizeof *to};
    if (!from) return true;
    if (from->size < sizeof from->size) return false;
    memcpy(to, from, from->size < sizeof *to ? from->size : sizeof *to);
    return to->set_count >= 0 && (to->set_count == 0 || to->set) && to->threads >= 0;
}

int hpsim_run(const char *scenario, const struct hpsim_run_options *options, char **ret_json, char **ret_error)
{
    struct run run = {0};
    struct hpsim_run_options own;
    int status = EXIT_INPUT;
    if (!scenario || !take_options(options, &own))
        snprintf(run.error, sizeof run.error, "hpsim_run: no scenario, or options whose size or counts are not set");
    else
        status = run_options(&run, scenario, &own);
    if (ret_json) *ret_json = run.text;
    else free(run.text);
    if (ret_error) *ret_error = run.error[0] ? memory_strdup(run.error) : NULL;
    return status;
}

void hpsim_free(char *text)
{
    free(text);
}

const char *hpsim_version(void)
{
    return HPSIM_VERSION;
}
