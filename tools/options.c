/* options: parsing. --name=VALUE and --name VALUE are the same; a value that begins with -- needs the
 * first form, so that a forgotten value is noticed. Numbers are strict decimal integers in their range.
 * Only of a list is --json alone understood: as --json -.
 * Of an option given twice the last counts, but --set, --fault and --checks add up. */
#include "tools/options.h"

#include <stdlib.h>
#include <string.h>
#include "scenarios/locale_c.h"
#include "scenarios/spelling.h"
#include "sim/arena.h"

enum { WORKERS_MAX = 1024 };

const struct option_entry option_table[OPTION_COUNT] = {
#define OPTION(identifier, name, argument, what) {name, argument, what, false},
#define LATER(identifier, name, what) {name, "", what, true},
#include "tools/options.def"
#undef OPTION
#undef LATER
};

static int option_find(const char *name, size_t length)
{
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (strlen(option_table[i].name) == length && !memcmp(option_table[i].name, name, length)) return i;
    }
    return -1;
}

static bool unknown_option(const char *command, uint64_t allowed, const char *name, struct error *error)
{
    const char *names[OPTION_COUNT];
    int count = 0;
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (allowed >> i & 1 && !option_table[i].later) names[count++] = option_table[i].name;
    }
    char shown[FOREIGN_TEXT];
    error_input(error, "unknown option --%s", foreign(name, shown));
    const char *near = spelling_nearest(name, names, count);
    if (near) error_hint(error, "did you mean --%s? hpsim %s --help lists them", near, command);
    else error_hint(error, "hpsim %s --help lists them", command);
    return false;
}

/* Digits only, so that neither a sign, a space nor an exponent slips in. */
static bool parse_integer(const char *option, const char *text, uint64_t low, uint64_t high, uint64_t *ret_value,
                          struct error *error)
{
    uint64_t value = 0;
    bool good = *text != 0;
    for (const char *p = text; *p && good; p++) {
        unsigned digit = (unsigned)(*p - '0');
        good = *p >= '0' && *p <= '9' && value <= (UINT64_MAX - digit) / 10;
        if (good) value = value * 10 + digit;
    }
    if (!good || value < low || value > high) {
        char shown[FOREIGN_TEXT];
        return error_input(error, "--%s \"%s\" is not a whole number from %llu to %llu", option, foreign(text, shown),
                           (unsigned long long)low, (unsigned long long)high);
    }
    *ret_value = value;
    return true;
}

/* Above 0, below 1, with a decimal point in every locale. */
static bool parse_fraction(const char *option, const char *text, double *ret_value, struct error *error)
{
    struct locale_c locale = locale_c_enter();
    char *end = NULL, shown[FOREIGN_TEXT];
    double value = strtod(text, &end);
    locale_c_leave(locale);
    if (end == text || *end || !(value > 0 && value < 1))
        return error_input(error, "--%s \"%s\" is not a number between 0 and 1, such as 1e-3", option, foreign(text, shown));
    *ret_value = value;
    return true;
}

static bool parse_choice(const char *option, const char *text, const char *const *choices, int count, int *ret_choice,
                         struct error *error)
{
    for (int i = 0; i < count; i++) {
        if (!strcmp(text, choices[i])) {
            *ret_choice = i;
            return true;
        }
    }
    char shown[FOREIGN_TEXT];
    error_input(error, "--%s \"%s\" is not one of %s", option, foreign(text, shown),
                option_table[option_find(option, strlen(option))].argument);
    const char *near = spelling_nearest(text, choices, count);
    if (near) error_hint(error, "did you mean %s?", near);
    return false;
}

static bool parse_set(struct options *options, const char *text, struct error *error)
{
    const char *equals = strchr(text, '=');
    if (!equals || equals == text) {
        char shown[FOREIGN_TEXT];
        error_input(error, "--set \"%s\" is not of the form PATH=VALUE", foreign(text, shown));
        error_hint(error, "for instance --set parallel.pp=2");
        return false;
    }
    size_t length = (size_t)(equals - text);
    char *path = memory_alloc(length + 1);
    memcpy(path, text, length);
    path[length] = 0;
    options->overrides =
        memory_realloc(options->overrides, (size_t)(options->overrides_count + 1) * sizeof *options->overrides);
    options->overrides[options->overrides_count++] = (struct override){path, equals + 1};
    return true;
}

static void join_checks(struct options *options, const char *text)
{
    size_t old = options->checks ? strlen(options->checks) + 1 : 0;
    char *joined = memory_alloc(old + strlen(text) + 1);
    if (old) {
        memcpy(joined, options->checks, old - 1);
        joined[old - 1] = ',';
    }
    strcpy(joined + old, text);
    free(options->checks);
    options->checks = joined;
}

static bool parse_number(struct options *options, enum option_id id, const char *value, struct error *error)
{
    const char *name = option_table[id].name;
    uint64_t number = 0;
    bool workers = id == OPTION_THREADS || id == OPTION_JOBS;
    if (!parse_integer(name, value, workers ? 1 : 0, workers ? WORKERS_MAX : UINT64_MAX, &number, error)) return false;
    if (id == OPTION_THREADS) options->threads = (int)number;
    if (id == OPTION_JOBS) options->jobs = (int)number;
    if (id == OPTION_INTERLEAVE) options->interleave = number;
    if (id == OPTION_SEED) {
        options->seed = number;
        options->seed_given = true;
    }
    return true;
}

static bool parse_value(struct options *options, enum option_id id, const char *value, struct error *error)
{
    static const char *const colors[] = {"auto", "always", "never"}, *const gemms[] = {"fixed", "openblas"};
    int choice = 0;
    switch (id) {
    case OPTION_SET: return parse_set(options, value, error);
    case OPTION_FAULT:
        options->faults =
            memory_realloc(options->faults, (size_t)(options->faults_count + 1) * sizeof *options->faults);
        options->faults[options->faults_count++] = value;
        return true;
    case OPTION_SEED: case OPTION_INTERLEAVE: case OPTION_THREADS: case OPTION_JOBS:
        return parse_number(options, id, value, error);
    case OPTION_GEMM:
        if (!parse_choice("gemm", value, gemms, 2, &choice, error)) return false;
        options->gemm = gemms[choice];
        return true;
    case OPTION_COLOR:
        if (!parse_choice("color", value, colors, 3, &choice, error)) return false;
        options->color = (enum color_choice)choice;
        return true;
    case OPTION_CHECKS: join_checks(options, value); return true;
    case OPTION_CPU_PATH: options->cpu_path = value; return true;
    case OPTION_COROUTINE: options->coroutine = value; return true;
    case OPTION_JSON: options->json = value; return true;
    case OPTION_PARALLEL: options->parallel = value; return true;
    case OPTION_STANDALONE: options->standalone = value; return true;
    case OPTION_NOISE: return parse_fraction("noise", value, &options->noise, error);
    case OPTION_CSV: options->csv = value; return true;
    case OPTION_DUMP: options->dump = value; return true;
    case OPTION_JUNIT: options->junit = value; return true;
    case OPTION_NO_FAULTS: options->no_faults = true; return true;
    case OPTION_MARKDOWN: options->markdown = true; return true;
    case OPTION_QUIET: options->quiet = true; return true;
    case OPTION_VERBOSE: options->verbose = true; return true;
    case OPTION_HELP: options->help = true; return true;
    default: return true;
    }
}

/* words[*i] is an option; takes its value from the next word where it has one. */
static bool parse_option(struct options *options, const char *command, uint64_t allowed, int count, char **words,
                         int *i, struct error *error)
{
    const char *name = words[*i] + 2, *equals = strchr(name, '='), *value = equals ? equals + 1 : NULL;
    int id = option_find(name, equals ? (size_t)(equals - name) : strlen(name));
    if (id < 0) {
        char plain[128] = "";
        size_t length = equals ? (size_t)(equals - name) : strlen(name);
        memcpy(plain, name, length < sizeof plain - 1 ? length : sizeof plain - 1);
        return unknown_option(command, allowed, plain, error);
    }
    const struct option_entry *entry = &option_table[id];
    if (entry->later) return error_input(error, "--%s (%s) is not there yet", entry->name, entry->what);
    if (!(allowed >> id & 1)) {
        error_input(error, "hpsim %s takes no --%s", command, entry->name);
        error_hint(error, "hpsim %s --help lists what it takes", command);
        return false;
    }
    if (!entry->argument[0]) {
        char shown[FOREIGN_TEXT];
        if (value) return error_input(error, "--%s takes no value, got \"%s\"", entry->name, foreign(value, shown));
        value = "";
    } else if (!value) {
        bool last = *i + 1 >= count || !strncmp(words[*i + 1], "--", 2);
        if (last && id == OPTION_JSON && allowed & OPTION_JSON_ALONE) {
            value = "-";
        } else if (last) {
            error_input(error, "--%s needs a value", entry->name);
            error_hint(error, "--%s %s: %s", entry->name, entry->argument, entry->what);
            return false;
        } else {
            value = words[++*i];
        }
    }
    if (entry->argument[0] && !value[0]) return error_input(error, "--%s needs a value, got an empty one", entry->name);
    options->given |= UINT64_C(1) << id;
    return parse_value(options, (enum option_id)id, value, error);
}

bool options_parse(struct options *options, const char *command, uint64_t allowed, int count, char **words,
                   struct error *error)
{
    *options = (struct options){0};
    options->arguments = memory_zalloc((size_t)(count + 1) * sizeof *options->arguments);
    bool only_arguments = false;
    for (int i = 0; i < count; i++) {
        const char *word = words[i];
        if (!only_arguments && !strcmp(word, "--")) {
            only_arguments = true;
        } else if (!only_arguments && !strcmp(word, "-h")) {
            options->help = true;
        } else if (!only_arguments && !strncmp(word, "--", 2)) {
            if (!parse_option(options, command, allowed | OPTION_BIT(HELP), count, words, &i, error)) return false;
        } else if (!only_arguments && word[0] == '-' && word[1]) {
            char shown[FOREIGN_TEXT];
            error_input(error, "unknown option %s", foreign(word, shown));
            error_hint(error, "options begin with two dashes; hpsim %s --help lists them", command);
            return false;
        } else {
            options->arguments[options->arguments_count++] = word;
        }
    }
    if (options->quiet && options->verbose) return error_input(error, "--quiet and --verbose contradict each other");
    return true;
}

void options_done(struct options *options)
{
    for (int i = 0; i < options->overrides_count; i++) free((char *)options->overrides[i].path);
    free(options->overrides);
    free(options->faults);
    free(options->arguments);
    free(options->checks);
    *options = (struct options){0};
}
