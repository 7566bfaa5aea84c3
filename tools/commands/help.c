/* help: generated from the tables of commands and options. */
#include <stdio.h>
#include <string.h>
#include "tools/command.h"
#include "tools/report/terminal.h"

enum { NAME_WIDTH = 12, OPTION_WIDTH = 34 };

void command_version(void)
{
    puts("hpsim " HPSIM_VERSION);
}

void command_help_all(void)
{
    struct terminal t = terminal_new(stdout, COLOR_AUTO);
    puts("hpsim: a flight simulator of parallel training\n");
    puts("usage: hpsim SCENARIO.json [options]\n       hpsim COMMAND [arguments] [options]\n");
    for (int i = 0; i < command_count(); i++) {
        terminal_paragraph(&t, 2, command_at(i)->name, NAME_WIDTH, STYLE_BOLD, command_at(i)->what);
    }
    puts("\nnot there yet:");
    for (int i = 0; i < command_later_count(); i++) {
        terminal_paragraph(&t, 2, command_later_at(i)->name, NAME_WIDTH, STYLE_DIM, command_later_at(i)->what);
    }
    puts("\nhpsim COMMAND --help tells a command's options; hpsim --version the version.\n"
         "hpsim schema KEY tells a key of a scenario; hpsim faults --help how a fault is written.");
}

void command_help_one(const struct command *command)
{
    struct terminal t = terminal_new(stdout, COLOR_AUTO);
    printf("usage: hpsim %s%s%s%s\n\n", command->name, command->arguments[0] ? " " : "", command->arguments,
           command->options ? " [options]" : "");
    terminal_paragraph(&t, 0, "", 0, STYLE_PLAIN, command->what);
    if (command->text[0]) {
        putchar('\n');
        terminal_paragraph(&t, 0, "", 0, STYLE_PLAIN, command->text);
    }
    putchar('\n');
    for (int i = 0; i < OPTION_COUNT; i++) {
        const struct option_entry *entry = &option_table[i];
        if (entry->later || !((command->options | OPTION_BIT(HELP)) >> i & 1)) continue;
        char label[96];
        bool alone = i == OPTION_JSON && command->options & OPTION_JSON_ALONE;
        snprintf(label, sizeof label, "--%s%s%s%s%s ", entry->name, entry->argument[0] ? " " : "", alone ? "[" : "", entry->argument, alone ? "]" : "");
        terminal_paragraph(&t, 2, label, OPTION_WIDTH, STYLE_BOLD, entry->what);
    }
}

static int run(const struct options *options)
{
    if (options->arguments_count == 0) {
        command_help_all();
        return EXIT_EXPECTED;
    }
    const char *name = options->arguments[0];
    const struct command *command = command_find(name);
    const struct command_later *later = command_later_find(name);
    struct error error = {0};
    if (command) {
        command_help_one(command);
        return EXIT_EXPECTED;
    }
    if (later) error_input(&error, "hpsim %s (%s) is not there yet", later->name, later->what);
    else command_unknown(&error, name);
    return command_fail(&error);
}

const struct command command_help = {
    .name = "help", .arguments = "[COMMAND]", .what = "this list, or one command's options", .text = "",
    .arguments_min = 0, .arguments_max = 1, .options = 0, .run = run,
};
