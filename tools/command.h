/* command: one entry of the face's table (commands.def); its file in commands/ holds the rest. */
#ifndef TOOLS_COMMAND_H
#define TOOLS_COMMAND_H

#include "sim/error.h"
#include "tools/guard.h"
#include "tools/options.h"

#ifndef HPSIM_VERSION
#define HPSIM_VERSION "0.1.0"
#endif

enum exit_status {
    EXIT_EXPECTED = 0, EXIT_UNEXPECTED = 1, EXIT_INPUT = 2, EXIT_OWN_FAULT = 70, EXIT_INTERRUPTED = 130,
};

struct command {
    const char *name;
    const char *arguments;        /* as the usage line shows them: "SCENARIO" */
    const char *what;             /* one line */
    const char *text;             /* a paragraph for its own help; "" if none */
    int arguments_min, arguments_max;
    uint64_t options;             /* OPTION_BITs it takes; --help always */
    int (*run)(const struct options *options); /* returns the exit status */
    /* What is said where a plug-in ended the process that ran (tools/guard.h); NULL: its message. Returns the exit status. */
    int (*ended)(const struct options *options, const struct guard_page *page, const struct guard_result *how);
    bool guards_itself;           /* runs each scenario in a process of its own */
};

int command_count(void);
const struct command *command_at(int i);
const struct command *command_find(const char *name);      /* NULL: none */

struct command_later { const char *name, *what; };
int command_later_count(void);
const struct command_later *command_later_at(int i);
const struct command_later *command_later_find(const char *name); /* NULL: none */

/* Says what is wrong on standard error, and gives the exit status it stands for. */
int command_fail(const struct error *error);
int command_usage_fail(const struct command *command, int arguments_count);
/* The names a mistyped command or topic could have meant go into the hint. */
bool command_unknown(struct error *error, const char *name);

void command_help_all(void);
void command_help_one(const struct command *command);
void command_version(void);

#endif
