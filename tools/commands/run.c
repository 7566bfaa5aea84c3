/* run: one scenario, its parallel layout and its standalone reference, compared and checked. */
#include <stdio.h>
#include <stdlib.h>
#include "tools/command.h"
#include "tools/guard.h"
#include "tools/interrupt.h"
#include "tools/output.h"
#include "tools/report/progress.h"
#include "tools/report/report.h"
#include "tools/setup.h"

static bool write_files(const struct options *options, const struct report *report, struct error *error)
{
    bool good = true;
    if (options->json) {
        char *text = report_json(report);
        good = output_write(options->json, text, error);
        free(text);
    }
    if (good && options->csv) {
        char *text = report_csv(report->result);
        good = output_write(options->csv, text, error);
        free(text);
    }
    if (good && options->dump) {
        char temporary[4200];
        snprintf(temporary, sizeof temporary, "%s.tmp", options->dump);
        interrupt_temporary(temporary);
        good = report_dump(report->result, options->dump, error);
        interrupt_temporary(NULL);
    }
    return good;
}

/* The report, then the files: a file that cannot be written does not take the verdict away. */
static int show(const struct options *options, const struct report *report)
{
    struct error error = {0};
    bool taken = (options->json && options->json[0] == '-' && !options->json[1]) ||
                 (options->csv && options->csv[0] == '-' && !options->csv[1]);
    if (!taken) {
        struct terminal terminal = terminal_new(output_stream(), options->color);
        report_text(report, &terminal);
    }
    if (!write_files(options, report, &error)) return command_fail(&error);
    return report_exit_status(report->result);
}

static int run(const struct options *options)
{
    struct error error = {0};
    struct experiment_options experiment;
    if (!setup_experiment(options, "default", setup_online_cpus(), &experiment, &error)) return command_fail(&error);
    struct scenario_options wanted = setup_scenario(options);
    struct scenario *scenario = scenario_load(options->arguments[0], &wanted, &error);
    if (!scenario) return command_fail(&error);
    guard_note_scenario(options->guard, scenario);
    if (!setup_outputs(options, &error)) {
        scenario_free(scenario);
        return command_fail(&error);
    }
    struct progress progress = progress_new(!options->quiet);
    experiment.train.progress = progress_update;
    experiment.train.progress_context = &progress;
    struct result *result = experiment_run(scenario, &experiment, &error);
    progress_clear(&progress);
    int status;
    if (result) {
        struct report report = {result, &experiment, options->quiet, options->verbose};
        status = show(options, &report);
    } else if (error_is_set(&error)) {
        status = command_fail(&error);
    } else {
        fprintf(stderr, "hpsim: interrupted\n");
        status = EXIT_INTERRUPTED;
    }
    result_free(result);
    scenario_free(scenario);
    return status;
}

/* The report of a run that has no record: whose plug-in ended it, and how. */
static int ended(const struct options *options, const struct guard_page *page, const struct guard_result *how)
{
    struct error error = {0};
    struct experiment_options experiment;
    struct result *result = guard_result_new(page, how);
    if (!result || !setup_experiment(options, "default", setup_online_cpus(), &experiment, &error)) {
        guard_result_free(result);
        return EXIT_UNEXPECTED;
    }
    struct report report = {result, &experiment, options->quiet, options->verbose};
    struct options without = *options; /* no tensors, no curve */
    without.dump = without.csv = NULL;
    int status = show(&without, &report);
    guard_result_free(result);
    return status;
}

const struct command command_run = {
    .name = "run",
    .arguments = "SCENARIO.json",
    .what = "runs a scenario against its standalone reference and names what differs",
    .text = "`hpsim SCENARIO.json` is short for it. Exit status: 0 as expected, 1 not as expected, 2 bad input, 70 a "
            "fault of hpsim's own, 130 interrupted.",
    .arguments_min = 1,
    .arguments_max = 1,
    .options = OPTION_BIT(SET) | OPTION_BIT(FAULT) | OPTION_BIT(NO_FAULTS) | OPTION_BIT(SEED) | OPTION_BIT(INTERLEAVE) |
               OPTION_BIT(THREADS) | OPTION_BIT(GEMM) | OPTION_BIT(CPU_PATH) | OPTION_BIT(COROUTINE) |
               OPTION_BIT(CHECKS) | OPTION_BIT(JSON) | OPTION_BIT(CSV) | OPTION_BIT(DUMP) | OPTION_BIT(QUIET) |
               OPTION_BIT(VERBOSE) | OPTION_BIT(COLOR),
    .run = run,
    .ended = ended,
};
