/* options: the command line after the command's name, checked against one table (options.def). */
#ifndef TOOLS_OPTIONS_H
#define TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include "scenarios/scenario.h"
#include "sim/error.h"

enum option_id {
#define OPTION(identifier, name, argument, what) OPTION_##identifier,
#define LATER(identifier, name, what) OPTION_##identifier,
#include "tools/options.def"
#undef OPTION
#undef LATER
    OPTION_COUNT
};
#define OPTION_BIT(identifier) (UINT64_C(1) << OPTION_##identifier)
/* Beside OPTION_BIT(JSON), of commands that list: --json without a value is --json -. */
#define OPTION_JSON_ALONE (UINT64_C(1) << 63)

struct option_entry { const char *name, *argument, *what; bool later; };
extern const struct option_entry option_table[OPTION_COUNT];

enum color_choice { COLOR_AUTO, COLOR_ALWAYS, COLOR_NEVER };

/* Texts are borrowed from argv, but for override paths and `checks`. */
struct guard_page;
struct options {
    struct guard_page *guard;                      /* in a process that is watched (tools/guard.h); else NULL */
    int arguments_count; const char **arguments;  /* what is no option */
    int overrides_count; struct override *overrides;
    int faults_count; const char **faults;
    bool no_faults, seed_given, quiet, verbose, help, markdown;
    uint64_t seed, interleave;
    int threads, jobs;                             /* 0: not given */
    const char *gemm, *cpu_path, *coroutine, *json, *csv, *dump, *junit, *parallel, *standalone;
    double noise;                                  /* 0: not given */
    char *checks;                                  /* NULL: not given; several are joined by commas */
    enum color_choice color;
    uint64_t given;                                /* OPTION_BITs */
};

/* allowed: OPTION_BITs that `command` takes. False and an error for anything not understood. */
bool options_parse(struct options *options, const char *command, uint64_t allowed, int count, char **words,
                   struct error *error);
void options_done(struct options *options);

#endif
