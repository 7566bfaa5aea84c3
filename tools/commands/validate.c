/* validate: reads scenarios as a run would, and runs nothing. */
#include <stdio.h>
#include "scenarios/spelling.h"
#include "tools/command.h"
#include "tools/output.h"
#include "tools/report/describe.h"
#include "tools/report/terminal.h"
#include "tools/setup.h"

static int run(const struct options *options)
{
    struct terminal terminal = terminal_new(output_stream(), options->color);
    struct scenario_options wanted = setup_scenario(options);
    int status = EXIT_EXPECTED;
    for (int i = 0; i < options->arguments_count; i++) {
        struct error error = {0};
        struct scenario *scenario = scenario_load(options->arguments[i], &wanted, &error);
        if (!scenario) {
            status = command_fail(&error);
            continue;
        }
        char text[DESCRIBE_TEXT], name[FOREIGN_TEXT];
        terminal_print(&terminal, STYLE_GOOD, "ok");
        fprintf(terminal.file, ": %s: %s", foreign(scenario->name, name), describe_layout(&scenario->config, text));
        if (scenario->expect.given) fprintf(terminal.file, "; expected: %s", describe_expectation(&scenario->expect, text));
        putc('\n', terminal.file);
        scenario_free(scenario);
    }
    return status;
}

const struct command command_validate = {
    .name = "validate",
    .arguments = "SCENARIO.json...",
    .what = "checks scenario files without running them",
    .text = "",
    .arguments_min = 1,
    .arguments_max = 1 << 30,
    .options = OPTION_BIT(SET) | OPTION_BIT(FAULT) | OPTION_BIT(NO_FAULTS) | OPTION_BIT(SEED) | OPTION_BIT(COLOR),
    .run = run,
};
