/* explain: runs a scenario and teaches on its own numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "scenarios/spelling.h"
#include "tools/command.h"
#include "tools/interrupt.h"
#include "tools/output.h"
#include "tools/report/convention_ledger.h"
#include "tools/report/explain_ring.h"
#include "tools/report/loss_ledger.h"
#include "tools/report/progress.h"
#include "tools/report/terminal.h"
#include "tools/setup.h"

static const char *const topics[] = {"loss", "gradients", "ring", "schedule", "routing", "memory", "communication"};
enum { TOPICS = sizeof topics / sizeof topics[0], TOPICS_THERE = 3 };

static bool topic_known(const char *topic, struct error *error)
{
    for (int i = 0; i < TOPICS; i++) {
        if (strcmp(topic, topics[i]) != 0) continue;
        return i < TOPICS_THERE || error_input(error, "hpsim explain %s is not there yet; loss, gradients and ring are", topic);
    }
    const char *near = spelling_nearest(topic, topics, TOPICS);
    char shown[FOREIGN_TEXT];
    error_input(error, "unknown topic \"%s\"", foreign(topic, shown));
    if (near) error_hint(error, "did you mean hpsim explain %s SCENARIO.json?", near);
    else error_hint(error, "hpsim explain loss SCENARIO.json is there");
    return false;
}

/* A ring is taught on one attention, the rest on training. */
static bool topic_fits(const char *topic, const struct scenario *scenario, struct error *error)
{
    bool ring = !strcmp(topic, "ring"), attention = scenario->config.workload == WORKLOAD_ATTENTION;
    if (ring == attention && (ring || scenario->config.workload == WORKLOAD_TRAIN)) return true;
    error_input(error, "hpsim explain %s needs a scenario with \"workload\": \"%s\"", topic, ring ? "attention" : "train");
    return false;
}

static int show(const struct options *options, const struct result *result)
{
    struct error error = {0};
    bool gradients = !strcmp(options->arguments[0], "gradients"), ring = !strcmp(options->arguments[0], "ring");
    if (!options->json || strcmp(options->json, "-") != 0) {
        struct terminal terminal = terminal_new(output_stream(), options->color);
        if (ring) explain_ring_text(result, &terminal);
        else if (gradients) explain_gradients_text(result, options->verbose, &terminal);
        else explain_loss_text(result, options->verbose, &terminal);
    }
    if (!options->json) return EXIT_EXPECTED;
    char *text = ring ? explain_ring_json(result) : gradients ? explain_gradients_json(result, options->verbose) : explain_loss_json(result, options->verbose);
    bool good = output_write(options->json, text, &error);
    free(text);
    return good ? EXIT_EXPECTED : command_fail(&error);
}

static int run(const struct options *options)
{
    struct error error = {0};
    struct experiment_options experiment;
    if (!topic_known(options->arguments[0], &error)) return command_fail(&error);
    if (!setup_experiment(options, "default", setup_online_cpus(), &experiment, &error)) return command_fail(&error);
    if (!setup_outputs(options, &error)) return command_fail(&error);
    struct scenario_options wanted = setup_scenario(options);
    struct scenario *scenario = scenario_load(options->arguments[1], &wanted, &error);
    if (!scenario) return command_fail(&error);
    if (!topic_fits(options->arguments[0], scenario, &error)) {
        scenario_free(scenario);
        return command_fail(&error);
    }
    struct progress progress = progress_new(true);
    experiment.train.progress = progress_update;
    experiment.train.progress_context = &progress;
    struct result *result = experiment_run(scenario, &experiment, &error);
    progress_clear(&progress);
    int status = EXIT_INTERRUPTED;
    if (result) status = show(options, result);
    else if (error_is_set(&error)) status = command_fail(&error);
    else fprintf(stderr, "hpsim: interrupted\n");
    result_free(result);
    scenario_free(scenario);
    return status;
}

const struct command command_explain = {
    .name = "explain",
    .arguments = "TOPIC SCENARIO.json",
    .what = "teaches on a scenario's own numbers: how the loss of each micro-batch becomes a weight, and a gradient",
    .text = "TOPIC is loss: every factor that a micro-batch's loss meets, the weight a token has in the end, and the "
            "weight due; and what every convention of train.loss_normalization would make of the same step. Or gradients: "
            "the same way factor by factor for each convention, and what the usual mistakes would multiply a gradient "
            "by. Or ring, of a scenario with workload attention: who has whose keys and values at which step, what blocks weigh, "
            "and what merging them rightly and wrongly gives. schedule, routing, memory and communication are not there yet. --verbose tells every step, not "
            "only the first. Exit status 0, whatever the verdict.",
    .arguments_min = 2,
    .arguments_max = 2,
    .options = OPTION_BIT(SET) | OPTION_BIT(FAULT) | OPTION_BIT(NO_FAULTS) | OPTION_BIT(SEED) | OPTION_BIT(INTERLEAVE) |
               OPTION_BIT(THREADS) | OPTION_BIT(GEMM) | OPTION_BIT(CPU_PATH) | OPTION_BIT(COROUTINE) |
               OPTION_BIT(JSON) | OPTION_BIT(VERBOSE) | OPTION_BIT(COLOR),
    .run = run,
};
