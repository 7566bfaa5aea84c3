/* hpsim: the program. Finds the command, parses its options, runs it, and makes sure that what was
 * written to standard output really arrived: a full disk is an error, a reader that has gone is none. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cJSON.h>
#include "sim/arena.h"
#include "sim/assertion.h"
#include "tools/command.h"
#include "tools/guard.h"
#include "tools/interrupt.h"
#include "tools/output.h"
#include "tools/setup.h"

/* What an assertion prints as the way to see the same again. */
static void remember_replay(int argc, char **argv)
{
    char text[1024] = "hpsim";
    size_t used = strlen(text);
    for (int i = 1; i < argc; i++) {
        size_t length = strlen(argv[i]);
        if (used + length + 2 > sizeof text) break;
        text[used++] = ' ';
        memcpy(text + used, argv[i], length + 1);
        used += length;
    }
    assertion_set_replay(text);
}

static bool looks_like_scenario(const char *word)
{
    size_t length = strlen(word);
    return (length > 5 && !strcmp(word + length - 5, ".json")) || strchr(word, '/');
}

/* Which command; *words becomes the first word after its name. NULL and an error: none. */
static const struct command *choose(int argc, char **argv, int *ret_first, struct error *error)
{
    const char *word = argv[1];
    const struct command *command = command_find(word);
    *ret_first = command ? 2 : 1;
    if (command) return command;
    const struct command_later *later = command_later_find(word);
    if (later) {
        error_input(error, "hpsim %s (%s) is not there yet", later->name, later->what);
        return NULL;
    }
    if (word[0] == '-' || looks_like_scenario(word)) return command_find("run");
    (void)argc;
    command_unknown(error, word);
    return NULL;
}

/* What was written to standard output really arrived: else the status says so. */
static int close_output(int status)
{
    errno = 0;
    bool lost = fflush(output_stream()) != 0 || ferror(output_stream());
    if (!lost || interrupt_pipe_closed()) return status;
    fprintf(stderr, "hpsim: standard output could not be written: %s\n", errno ? strerror(errno) : "write error");
    return EXIT_INPUT;
}

struct job { const struct command *command; struct options *options; };

static int run_watched(struct guard_page *page, void *context)
{
    struct job *job = context;
    job->options->guard = page;
    return close_output(job->command->run(job->options));
}

static bool has_plugin(const struct options *options)
{
    struct scenario_options wanted = setup_scenario(options);
    for (int i = 0; i < options->arguments_count; i++) {
        if (scenario_has_plugin(options->arguments[i], &wanted)) return true;
    }
    return false;
}

/* A scenario with a plug-in is run in a process of its own: what the plug-in does to it must not be the end of the report. */
static int run_guarded(const struct command *command, struct options *options)
{
    bool takes_scenarios = command->options & OPTION_BIT(SET);
    if (!takes_scenarios || command->guards_itself || !has_plugin(options)) return command->run(options);
    struct job job = {command, options};
    struct guard_result how;
    struct guard_page *page = guard_run(run_watched, &job, interrupt_stop(), &how);
    int status = how.status;
    if (how.end != GUARD_ENDED) fprintf(stderr, "hpsim: %s\n", how.message);
    if (how.end == GUARD_PLUGIN && command->ended) status = command->ended(options, page, &how);
    guard_done(page);
    return status;
}

static int run_command(int argc, char **argv)
{
    struct error error = {0};
    int first = 1;
    if (argc < 2) {
        error_input(&error, "no command and no scenario");
        error_hint(&error, "hpsim SCENARIO.json runs one; hpsim --help lists the commands");
        return command_fail(&error);
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")) return command_help_all(), EXIT_EXPECTED;
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) return command_version(), EXIT_EXPECTED;
    const struct command *command = choose(argc, argv, &first, &error);
    if (!command) return command_fail(&error);

    struct options options = {0};
    int status = EXIT_EXPECTED;
    bool parsed = options_parse(&options, command->name, command->options, argc - first, argv + first, &error);
    if (parsed && options.help) {
        command_help_one(command);
    } else if (!parsed) {
        status = command_fail(&error);
    } else if (options.arguments_count < command->arguments_min || options.arguments_count > command->arguments_max) {
        status = command_usage_fail(command, options.arguments_count);
    } else {
        status = run_guarded(command, &options);
    }
    options_done(&options);
    return status;
}

/* Started with one of 0, 1, 2 closed, the next file that is opened would take its place. */
static void fill_standard_descriptors(void)
{
    int fd;
    while ((fd = open("/dev/null", O_RDWR)) >= 0 && fd <= 2) continue;
    if (fd > 2) close(fd);
}

int main(int argc, char **argv)
{
    fill_standard_descriptors();
    mallopt(M_MMAP_THRESHOLD, 64 << 20); /* message blocks come again in every run: not from and to the kernel each time */
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
    cJSON_Hooks hooks = {.malloc_fn = memory_alloc, .free_fn = free};
    cJSON_InitHooks(&hooks);
    interrupt_install();
    remember_replay(argc, argv);
    int status = run_command(argc, argv);
    return close_output(status);
}
