/* diagnose: two loss curves of the user's own framework, and which faults of the catalogue would make them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "scenarios/curve_diagnosis.h"
#include "sim/arena.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/output.h"
#include "tools/report/json_value.h"
#include "tools/report/number.h"
#include "tools/report/progress.h"
#include "tools/report/table.h"
#include "tools/setup.h"

enum { CLASSES_SHOWN = 3, MEMBERS_SHOWN = 6, LABEL = 13 };
static const char *const channel_keys[CURVE_CHANNELS] = {"loss", "loss_backward", "grad_norm"};

/* ---- JSON ---- */

static void add_channel(cJSON *root, const struct curve_diagnosis *d, int k)
{
    if (!d->given[k]) return json_add_null(root, channel_keys[k]);
    cJSON *object = json_add_object(root, channel_keys[k]);
    json_add_text(object, "first_ratio", d->ratio[k]);
    cJSON *steps = json_add_array(object, "steps");
    for (int p = 0; p < d->points; p++) {
        cJSON *step = json_append_object(steps);
        json_add_integer(step, "step", d->step[p]);
        json_add_number(step, "difference", d->difference[k][p]);
        json_add_number(step, "noise", d->floor[k][p]);
    }
}

static void add_candidate(cJSON *list, const struct curve_candidate *c)
{
    cJSON *object = json_append_object(list);
    json_add_text(object, "fault", c->fault->name);
    json_add_text(object, "component", c->fault->component);
    json_add_number(object, "score", c->score);
    json_add_text(object, "why", c->why);
    cJSON *separate = json_add_array(object, "separate_by");
    for (int i = 0; i < c->separate_count; i++) json_append_text(separate, c->separate_by[i]);
    json_add_integer(object, "class", c->class);
    json_add_text(object, "loss_read_as", c->reads_backward ? "backward" : "printed");
    cJSON *alike = json_add_array(object, "alike");
    for (int i = 0; i < c->alike_count; i++) json_append_text(alike, c->alike[i]->name);
}

static char *as_json(const struct curve_diagnosis *d, const struct scenario *scenario)
{
    cJSON *root = cJSON_CreateObject();
    json_add_integer(root, "hpsim", 1);
    json_add_text(root, "scenario", scenario->name);
    json_add_text(root, "verdict", curve_verdict_names[d->verdict]);
    json_add_bool(root, "same_model", d->same_model);
    json_add_number(root, "noise", d->noise);
    json_add_text(root, "noise_from", d->noise_from);
    json_add_number(root, "healthy_score", d->healthy_score);
    cJSON *given = json_add_object(root, "given");
    for (int k = 0; k < CURVE_CHANNELS; k++) add_channel(given, d, k);
    cJSON *list = json_add_array(root, "candidates");
    for (int i = 0; i < d->candidates_count; i++) add_candidate(list, &d->candidates[i]);
    cJSON *simulated = json_add_object(root, "simulated");
    json_add_integer(simulated, "steps", d->steps);
    json_add_integer(simulated, "faults", d->simulated);
    json_add_integer(simulated, "not_hit", d->not_hit);
    json_add_integer(simulated, "stopped", d->stopped);
    cJSON *notes = json_add_array(root, "notes");
    for (int i = 0; i < d->notes_count; i++) json_append_text(notes, d->notes[i]);
    return json_finish(root);
}

/* ---- text ---- */

static void print_table(const struct curve_diagnosis *d, const struct terminal *t)
{
    static const char *const titles[CURVE_CHANNELS] = {"loss x", "backward loss x", "grad norm x"};
    const char *heads[1 + 2 * CURVE_CHANNELS] = {"step"};
    int columns = 1;
    for (int k = 0; k < CURVE_CHANNELS; k++) {
        if (!d->given[k]) continue;
        heads[columns++] = titles[k];
        heads[columns++] = "noise";
    }
    static const char align[] = "rrrrrrr";
    struct table *table = table_new(columns, heads, align + (sizeof align - 1) - columns);
    for (int p = 0; p < d->points; p++) {
        table_add(table, STYLE_PLAIN, "%d", d->step[p]);
        for (int k = 0; k < CURVE_CHANNELS; k++) {
            if (!d->given[k]) continue;
            char number[NUMBER_TEXT], noise[NUMBER_TEXT];
            bool seen = fabs(d->difference[k][p]) > 2 * d->floor[k][p];
            bool named = p == 0 && d->ratio[k][0] && strcmp(d->ratio[k], "1") != 0;
            table_add(table, seen ? STYLE_BAD : STYLE_PLAIN, "%s%s%s", number_factor(1 + d->difference[k][p], number), named ? " = " : "", named ? d->ratio[k] : "");
            table_add(table, STYLE_DIM, "%s", number_error(d->floor[k][p], noise));
        }
    }
    table_print(table, t, 2);
    table_free(table);
}

/* The observation that would show most of what stays hidden. */
static void print_best_look(const struct curve_diagnosis *d, const struct terminal *t)
{
    int best = 0, best_count = 0;
    for (int i = 0; i < d->candidates_count; i++) {
        int count = 0;
        for (int j = 0; j < d->candidates_count && d->candidates[i].separate_count; j++) {
            const struct curve_candidate *c = &d->candidates[j];
            count += c->separate_count && !strcmp(c->separate_by[0], d->candidates[i].separate_by[0]);
        }
        if (count > best_count) {
            best = i;
            best_count = count;
        }
    }
    terminal_print(t, STYLE_PLAIN, "so do those of %d faults here", d->candidates_count);
    if (best_count) terminal_print(t, STYLE_PLAIN, "; %d of these would be shown by %s", best_count, d->candidates[best].separate_by[0]);
    terminal_print(t, STYLE_PLAIN, "\n");
}

static void print_verdict(const struct curve_diagnosis *d, const struct terminal *t)
{
    const struct curve_candidate *best = d->candidates_count ? &d->candidates[0] : NULL;
    if (d->verdict == CURVE_NOT_VISIBLE) {
        terminal_print(t, STYLE_GOOD, "NOT VISIBLE here");
        terminal_print(t, STYLE_PLAIN, ": the curves agree within their noise, as those of a healthy run do\n");
        print_best_look(d, t);
    } else if (d->verdict == CURVE_UNEXPLAINED) {
        terminal_print(t, STYLE_WARN, "UNEXPLAINED");
        terminal_print(t, STYLE_PLAIN, ": no fault of the catalogue, alone and in this layout, makes these curves; the nearest are shown\n");
    } else {
        int members = 0;
        for (int i = 0; i < d->candidates_count; i++) members += d->candidates[i].class == 1;
        terminal_print(t, STYLE_BAD, "EXPLAINED");
        if (members == 1) terminal_print(t, STYLE_PLAIN, " best by %s, in %s\n", best->fault->name, best->fault->component);
        else terminal_print(t, STYLE_PLAIN, " best by %d faults whose curves are the same here\n", members);
    }
}

static void print_lists(const struct curve_candidate *c, const struct terminal *t)
{
    for (int i = 0; i < c->separate_count; i++) terminal_paragraph(t, 4, i ? "" : "separate by", LABEL, STYLE_DIM, c->separate_by[i]);
    char alike[600] = "";
    for (int i = 0; i < c->alike_count; i++) {
        size_t used = strlen(alike);
        snprintf(alike + used, sizeof alike - used, "%s%s", i ? ", " : "", c->alike[i]->name);
    }
    if (alike[0]) terminal_paragraph(t, 4, "alike", LABEL, STYLE_DIM, alike);
}

static void print_candidate(const struct curve_candidate *c, const struct terminal *t)
{
    terminal_print(t, STYLE_NAME, "  %-32s", c->fault->name);
    terminal_print(t, STYLE_PLAIN, " %-20s %.3f\n", c->fault->component, c->score);
    terminal_paragraph(t, 4, "why", LABEL, STYLE_DIM, c->why);
    print_lists(c, t);
}

/* Of each class so many members; where nothing is visible, one line a fault. */
static void print_candidates(const struct curve_diagnosis *d, bool verbose, const struct terminal *t)
{
    int class = 0, members = 0, hidden = 0;
    for (int i = 0; i < d->candidates_count; i++) {
        const struct curve_candidate *c = &d->candidates[i];
        if (c->class != class) members = 0;
        bool shown = verbose || (c->class <= CLASSES_SHOWN && members < MEMBERS_SHOWN);
        members++;
        if (!shown) {
            hidden++;
            continue;
        }
        if (c->class != class) terminal_print(t, STYLE_BOLD, "class %d\n", c->class);
        class = c->class;
        if (d->verdict != CURVE_NOT_VISIBLE) print_candidate(c, t);
        else {
            terminal_print(t, STYLE_NAME, "  %-32s", c->fault->name);
            terminal_print(t, STYLE_PLAIN, " %s\n", c->fault->component);
            if (c->separate_count) terminal_paragraph(t, 4, "shown by", LABEL, STYLE_DIM, c->separate_by[0]);
            else terminal_paragraph(t, 4, "shown by", LABEL, STYLE_DIM, "nothing of this layout: it changes no number here");
        }
    }
    if (hidden) terminal_print(t, STYLE_DIM, "%d more with --verbose or --json\n", hidden);
}

static void print_all(const struct curve_diagnosis *d, const struct options *options)
{
    struct terminal t = terminal_new(output_stream(), options->color);
    char noise[NUMBER_TEXT];
    if (!options->quiet) print_table(d, &t);
    print_verdict(d, &t);
    if (options->quiet) return;
    print_candidates(d, options->verbose, &t);
    terminal_print(&t, STYLE_DIM, "%d faults simulated for %d steps: %d have no place in this layout, %d stop it and leave no curve\n", d->simulated, d->steps, d->not_hit, d->stopped);
    terminal_print(&t, STYLE_DIM, "noise: at most %s, from %s\n", number_error(d->noise, noise), d->noise_from);
    for (int i = 0; i < d->notes_count; i++) terminal_paragraph(&t, 0, "note:", 6, STYLE_WARN, d->notes[i]);
}

/* ---- the command ---- */

static void show_progress(void *context, int done, int total, const char *what)
{
    progress_count(context, done, total, what);
}

static int report(const struct options *options, const struct curve_diagnosis *d, const struct scenario *scenario)
{
    struct error error = {0};
    bool taken = options->json && !strcmp(options->json, "-"), good = true;
    if (!taken) print_all(d, options);
    if (options->json) {
        char *text = as_json(d, scenario);
        good = output_write(options->json, text, &error);
        free(text);
    }
    if (!good) return command_fail(&error);
    return d->verdict == CURVE_UNEXPLAINED ? EXIT_UNEXPECTED : EXIT_EXPECTED;
}

static int diagnose_scenario(const struct options *options, const struct scenario *scenario, const struct scenario_options *wanted, const struct experiment_options *experiment)
{
    struct error error = {0};
    struct curve parallel = {0}, standalone = {0};
    struct progress progress = progress_new(!options->quiet);
    struct curve_options curves = {.train = experiment->train, .noise = options->given & OPTION_BIT(NOISE) ? options->noise : NAN, .wanted = wanted,
                                   .progress = show_progress, .progress_context = &progress};
    struct curve_diagnosis *d = NULL;
    int status;
    if (curve_read(options->parallel, CURVE_PARALLEL, &parallel, &error) && curve_read(options->standalone, CURVE_STANDALONE, &standalone, &error))
        d = curve_diagnose(scenario, &parallel, &standalone, &curves, &error);
    progress_clear(&progress);
    if (d) {
        status = report(options, d, scenario);
    } else if (error_is_set(&error)) {
        status = command_fail(&error);
    } else {
        fprintf(stderr, "hpsim: interrupted\n");
        status = EXIT_INTERRUPTED;
    }
    curve_diagnosis_free(d);
    curve_done(&parallel);
    curve_done(&standalone);
    return status;
}

static int run(const struct options *options)
{
    struct error error = {0};
    struct experiment_options experiment;
    if (!options->parallel || !options->standalone) {
        error_input(&error, "hpsim diagnose needs %s", options->parallel ? "--standalone FILE.csv" : "--parallel FILE.csv");
        error_hint(&error, "both curves, with the same steps: step,loss[,grad_norm], or what hpsim run --csv writes");
        return command_fail(&error);
    }
    if (!setup_experiment(options, "default", setup_online_cpus(), &experiment, &error)) return command_fail(&error);
    struct scenario_options wanted = setup_scenario(options);
    wanted.no_faults = true; /* what made the curves is the question */
    struct scenario *scenario = scenario_load(options->arguments[0], &wanted, &error);
    if (!scenario) return command_fail(&error);
    if (scenario->config.workload != WORKLOAD_TRAIN) {
        scenario_free(scenario);
        error_input(&error, "hpsim diagnose reads the curves of a training; the scenario's workload is another");
        return command_fail(&error);
    }
    int status = setup_outputs(options, &error) ? diagnose_scenario(options, scenario, &wanted, &experiment) : command_fail(&error);
    scenario_free(scenario);
    return status;
}

const struct command command_diagnose = {
    .name = "diagnose",
    .arguments = "SCENARIO.json",
    .what = "ranks which faults of the catalogue explain two loss curves",
    .text = "SCENARIO is a layout like that of your run: the same pp, data ranks and micro-batches; its own faults are left "
            "out. Every fault of the catalogue is simulated in it and its curves are held against yours, relative to the "
            "standalone ones. Exit status: 0 explained or not visible, 1 nothing in the catalogue explains it, 2 bad input.",
    .arguments_min = 1,
    .arguments_max = 1,
    .options = OPTION_BIT(PARALLEL) | OPTION_BIT(STANDALONE) | OPTION_BIT(NOISE) | OPTION_BIT(SET) | OPTION_BIT(SEED) | OPTION_BIT(THREADS) |
               OPTION_BIT(GEMM) | OPTION_BIT(CPU_PATH) | OPTION_BIT(COROUTINE) | OPTION_BIT(JSON) | OPTION_BIT(QUIET) |
               OPTION_BIT(VERBOSE) | OPTION_BIT(COLOR),
    .run = run,
};
