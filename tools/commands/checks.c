/* checks: what is proved about a run, from the registry of checks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "scenarios/check.h"
#include "sim/arena.h"
#include "tools/listing.h"
#include "tools/report/json_value.h"
#include "tools/report/table.h"

static void add_json(cJSON *list, const struct check *check)
{
    cJSON *object = json_append_object(list);
    json_add_text(object, "id", check->id);
    json_add_text(object, "proves", check->proves);
    json_add_text(object, "tier", check->tier);
}

static bool names_check(const char *list, const char *id)
{
    size_t length = strlen(id);
    for (const char *at = list; (at = strstr(at, id)) != NULL; at += length) {
        bool begins = at == list || at[-1] == ',' || at[-1] == ' ';
        if (begins && (at[length] == 0 || at[length] == ',' || at[length] == ' ')) return true;
    }
    return false;
}

static void print_one(const struct check *check, const struct terminal *t)
{
    enum { LABEL = 12 };
    terminal_print(t, STYLE_BOLD, "%s\n", check->id);
    terminal_paragraph(t, 2, "proves", LABEL, STYLE_DIM, check->proves);
    terminal_paragraph(t, 2, "runs", LABEL, STYLE_DIM,
                       !strcmp(check->tier, "deep") ? "with --checks deep, in test and campaign" : "always");
    for (int i = 0, first = 1; i < fault_count(); i++) {
        if (!names_check(fault_at(i)->checks, check->id)) continue;
        terminal_paragraph(t, 2, first ? "catches" : "", LABEL, STYLE_DIM, fault_at(i)->name);
        first = 0;
    }
}

static void print_all(const struct terminal *t)
{
    int width = 0;
    for (int i = 0; i < check_count(); i++) {
        int length = (int)strlen(check_at(i)->id);
        if (length > width) width = length;
    }
    for (int i = 0; i < check_count(); i++) {
        const struct check *check = check_at(i);
        char label[96];
        snprintf(label, sizeof label, "%-*s  %-7s", width, check->id, check->tier);
        terminal_paragraph(t, 0, label, width + 11, STYLE_BOLD, check->proves);
    }
    terminal_print(t, STYLE_DIM, "%d checks; hpsim checks NAME tells one whole\n", check_count());
}

static int run(const struct options *options)
{
    const char *name = options->arguments_count ? options->arguments[0] : NULL;
    const struct check *only = name ? check_find_by_id(name) : NULL;
    if (name && !only) {
        const char **names = memory_alloc((size_t)(check_count() + 1) * sizeof *names);
        for (int i = 0; i < check_count(); i++) names[i] = check_at(i)->id;
        int status = listing_unknown("check", name, names, check_count());
        free(names);
        return status;
    }
    if (!listing_wants_text(options)) {
        cJSON *list = cJSON_CreateArray();
        for (int i = 0; i < check_count(); i++) {
            if (!only || check_at(i) == only) add_json(list, check_at(i));
        }
        return listing_json(options, list);
    }
    struct terminal terminal = terminal_new(stdout, options->color);
    if (only) print_one(only, &terminal);
    else print_all(&terminal);
    return EXIT_EXPECTED;
}

const struct command command_checks = {
    .name = "checks",
    .arguments = "[NAME]",
    .what = "what is proved about a run, and which faults each check catches",
    .text = "",
    .arguments_min = 0,
    .arguments_max = 1,
    .options = OPTION_BIT(JSON) | OPTION_JSON_ALONE | OPTION_BIT(COLOR),
    .run = run,
};
