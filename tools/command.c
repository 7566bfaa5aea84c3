/* command: the table, and what is said when a command line cannot be understood. */
#include "tools/command.h"

#include <stdio.h>
#include <string.h>
#include "scenarios/spelling.h"
#include "tools/output.h"

#define COMMAND(name) extern const struct command command_##name;
#define LATER(name, what)
#include "tools/commands.def"
#undef COMMAND
#undef LATER

static const struct command *const commands[] = {
#define COMMAND(name) &command_##name,
#define LATER(name, what)
#include "tools/commands.def"
#undef COMMAND
#undef LATER
};
static const struct command_later laters[] = {
#define COMMAND(name)
#define LATER(name, what) {name, what},
#include "tools/commands.def"
#undef COMMAND
#undef LATER
};

int command_count(void)
{
    return (int)(sizeof commands / sizeof commands[0]);
}

const struct command *command_at(int i)
{
    return i >= 0 && i < command_count() ? commands[i] : NULL;
}

const struct command *command_find(const char *name)
{
    for (int i = 0; i < command_count(); i++) {
        if (!strcmp(commands[i]->name, name)) return commands[i];
    }
    return NULL;
}

int command_later_count(void)
{
    return (int)(sizeof laters / sizeof laters[0]);
}

const struct command_later *command_later_at(int i)
{
    return i >= 0 && i < command_later_count() ? &laters[i] : NULL;
}

const struct command_later *command_later_find(const char *name)
{
    for (int i = 0; i < command_later_count(); i++) {
        if (!strcmp(laters[i].name, name)) return &laters[i];
    }
    return NULL;
}

int command_fail(const struct error *error)
{
    char text[2560];
    error_text(error, text, sizeof text);
    fflush(output_stream());
    fprintf(stderr, "hpsim: %s\n", text);
    return error->kind == ERROR_NONE ? EXIT_OWN_FAULT : (int)error->kind;
}

int command_usage_fail(const struct command *command, int arguments_count)
{
    struct error error = {0};
    if (arguments_count < command->arguments_min)
        error_input(&error, "hpsim %s needs %s", command->name, command->arguments);
    else
        error_input(&error, "hpsim %s takes %s%s, got %d arguments", command->name,
                    command->arguments[0] ? "only " : "no arguments", command->arguments, arguments_count);
    error_hint(&error, "hpsim %s --help shows how it is called", command->name);
    return command_fail(&error);
}

bool command_unknown(struct error *error, const char *name)
{
    const char *names[sizeof commands / sizeof commands[0] + sizeof laters / sizeof laters[0]];
    int count = 0;
    for (int i = 0; i < command_count(); i++) names[count++] = commands[i]->name;
    for (int i = 0; i < command_later_count(); i++) names[count++] = laters[i].name;
    char shown[FOREIGN_TEXT];
    error_input(error, "unknown command \"%s\"", foreign(name, shown));
    const char *near = spelling_nearest(name, names, count);
    if (near) error_hint(error, "did you mean hpsim %s? hpsim --help lists all", near);
    else error_hint(error, "hpsim --help lists all; a scenario's name ends in .json");
    return false;
}
