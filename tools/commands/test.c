/* test: every scenario under the paths against what it expects. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "scenarios/spelling.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/report/json_value.h"
#include "tools/report/number.h"
#include "tools/report/progress.h"
#include "tools/report/terminal.h"
#include "tools/setup.h"
#include "tools/suite.h"

enum { NAME_WIDTH = 40, VERDICT_WIDTH = 12 };

struct view {
    const struct options *options;
    struct terminal terminal;
    struct progress progress;
    bool silent;
    int name_width;
};

static void print_failure(const struct view *view, const struct suite_row *row)
{
    const struct terminal *t = &view->terminal;
    if (row->end == SUITE_RAN) {
        char line[2048];
        snprintf(line, sizeof line, "expected %s%s%s%s%s", row->expected, row->why[0] ? "; " : "", row->why,
                 row->failed_checks[0] ? "; failed checks: " : "", row->failed_checks);
        terminal_paragraph(t, 6, "", 0, STYLE_PLAIN, line);
    } else {
        terminal_paragraph(t, 6, "", 0, STYLE_PLAIN, row->why);
    }
}

static void print_row(void *context, const struct suite *suite, int at)
{
    struct view *view = context;
    const struct terminal *t = &view->terminal;
    const struct suite_row *row = &suite->rows[at];
    char name[FOREIGN_TEXT];
    bool passed = suite_row_passed(row);
    progress_clear(&view->progress);
    if (!view->silent && row->end != SUITE_NOT_RUN && (!passed || !view->options->quiet)) {
        static const char *const ends[] = {[SUITE_REFUSED] = "refused", [SUITE_CRASHED] = "crashed"};
        terminal_print(t, passed ? STYLE_GOOD : STYLE_BAD, "%-4s", passed ? "ok" : "FAIL");
        fprintf(t->file, "  %-*s  %-*s", view->name_width, foreign(row->scenario, name),
                row->component[0] || view->options->verbose ? VERDICT_WIDTH : 0,
                row->end == SUITE_RAN ? verdict_names[row->verdict] : ends[row->end]);
        if (row->component[0]) terminal_print(t, STYLE_NAME, "%s", row->component);
        if (view->options->verbose && row->end == SUITE_RAN) {
            char wall[NUMBER_TEXT];
            terminal_print(t, STYLE_DIM, "  %s%s%s", number_seconds(row->wall_s, wall),
                           row->failed_checks[0] ? "  failed: " : "", row->failed_checks);
        }
        fputc('\n', t->file);
        if (!passed) print_failure(view, row);
        fflush(t->file);
    }
    progress_count(&view->progress, at + 1, suite->count, "scenarios");
}

/* What is complete; a row that did not run is not there. */
static char *rows_json(const struct suite *suite, int passed, int failed)
{
    cJSON *root = cJSON_CreateObject();
    json_add_integer(root, "hpsim", 1);
    json_add_text(root, "version", HPSIM_VERSION);
    json_add_integer(root, "passed", passed);
    json_add_integer(root, "failed", failed);
    cJSON *rows = json_add_array(root, "rows");
    for (int i = 0; i < suite->count; i++) {
        const struct suite_row *row = &suite->rows[i];
        if (row->end == SUITE_NOT_RUN) continue;
        cJSON *object = json_append_object(rows);
        json_add_text(object, "scenario", row->scenario);
        json_add_text(object, "verdict", row->end == SUITE_RAN ? verdict_names[row->verdict] : NULL);
        json_add_text(object, "component", row->component);
        json_add_bool(object, "as_expected", suite_row_passed(row));
        json_add_text(object, "file", suite->paths[i]);
        json_add_text(object, "expected", row->expected);
        json_add_list(object, "failed_checks", row->failed_checks);
        json_add_text(object, "why", row->why);
    }
    return json_finish(root);
}

static bool write_files(const struct options *options, const struct suite *suite, int passed, int failed,
                        struct error *error)
{
    bool good = true;
    if (options->json) {
        char *text = rows_json(suite, passed, failed);
        good = output_write(options->json, text, error);
        free(text);
    }
    if (good && options->junit) {
        char *text = suite_junit(suite);
        good = output_write(options->junit, text, error);
        free(text);
    }
    return good;
}

static int conclude(const struct view *view, const struct suite *suite, bool whole)
{
    int passed = 0, failed = 0, crashed = 0, not_run = 0;
    for (int i = 0; i < suite->count; i++) {
        const struct suite_row *row = &suite->rows[i];
        if (row->end == SUITE_NOT_RUN) not_run++;
        else if (suite_row_passed(row)) passed++;
        else failed++;
        crashed += row->end == SUITE_CRASHED;
    }
    struct error error = {0};
    if (!view->silent) {
        terminal_print(&view->terminal, failed ? STYLE_BAD : STYLE_GOOD, "%d passed, %d failed", passed, failed);
        if (not_run) printf(", %d not run", not_run);
        putchar('\n');
    }
    if (!write_files(view->options, suite, passed, failed, &error)) return command_fail(&error);
    if (!whole) {
        fprintf(stderr, "hpsim: interrupted\n");
        return EXIT_INTERRUPTED;
    }
    return crashed ? EXIT_OWN_FAULT : failed ? EXIT_UNEXPECTED : EXIT_EXPECTED;
}

static int run(const struct options *options)
{
    struct error error = {0};
    struct experiment_options experiment;
    struct suite suite = {0};
    if (!setup_experiment(options, "deep", 1, &experiment, &error)) return command_fail(&error);
    if (!suite_collect(&suite, options->arguments, options->arguments_count, &error) ||
        !setup_outputs(options, &error)) {
        suite_done(&suite);
        return command_fail(&error);
    }
    struct view view = {.options = options,
                        .terminal = terminal_new(stdout, options->color),
                        .progress = progress_new(!options->quiet),
                        .silent = options->json && !strcmp(options->json, "-"),
                        .name_width = 0};
    /* Names are their files' mostly; the column is laid out before they are read. */
    for (int i = 0; i < suite.count; i++) {
        const char *base = strrchr(suite.paths[i], '/');
        int length = (int)strlen(base ? base + 1 : suite.paths[i]) - (int)strlen(".json");
        if (length > view.name_width) view.name_width = length < NAME_WIDTH ? length : NAME_WIDTH;
    }
    struct scenario_options wanted = setup_scenario(options);
    bool whole =
        suite_run(&suite, &wanted, &experiment, options->jobs ? options->jobs : setup_online_cpus(), print_row, &view);
    progress_clear(&view.progress);
    int status = conclude(&view, &suite, whole);
    suite_done(&suite);
    return status;
}

const struct command command_test = {
    .name = "test",
    .arguments = "PATH...",
    .what = "runs every scenario under the paths and holds each against what it expects",
    .text = "Folders are searched for *.json. Every scenario runs in a process of its own, with --checks deep unless "
            "told otherwise. "
            "Exit status: 0 all passed, 1 some failed, 2 nothing to run, 70 a fault of hpsim's own, 130 interrupted.",
    .arguments_min = 1,
    .arguments_max = 1 << 30,
    .options = OPTION_BIT(SET) | OPTION_BIT(FAULT) | OPTION_BIT(NO_FAULTS) | OPTION_BIT(SEED) | OPTION_BIT(INTERLEAVE) |
               OPTION_BIT(THREADS) | OPTION_BIT(GEMM) | OPTION_BIT(CPU_PATH) | OPTION_BIT(COROUTINE) |
               OPTION_BIT(CHECKS) | OPTION_BIT(JSON) | OPTION_BIT(JUNIT) | OPTION_BIT(JOBS) | OPTION_BIT(QUIET) |
               OPTION_BIT(VERBOSE) | OPTION_BIT(COLOR),
    .run = run,
    .guards_itself = true,
};
