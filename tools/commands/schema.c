/* schema: the JSON Schema of scenario files, from the table that the loader reads by. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tools/command.h"

static int run(const struct options *options)
{
    (void)options;
    char *schema = scenario_schema();
    size_t length = strlen(schema);
    fputs(schema, stdout);
    if (length == 0 || schema[length - 1] != '\n') putchar('\n');
    free(schema);
    return EXIT_EXPECTED;
}

const struct command command_schema = {
    .name = "schema", .arguments = "", .what = "prints the JSON Schema of scenario files", .text = "",
    .arguments_min = 0, .arguments_max = 0, .options = 0, .run = run,
};
