/* faults: the catalogue, from its registry. */
#include <stdio.h>
#include <stdlib.h>
#include "sim/arena.h"
#include "tools/listing.h"
#include "tools/report/json_value.h"
#include "tools/report/table.h"

/* Where a fault is injected unless the scenario says where. */
static const char *default_at(unsigned at)
{
    static const struct { unsigned bit; const char *text; } places[] = {
        {AT_STAGES_BUT_FIRST, "on every stage but the first"},
        {AT_STAGE_MIDDLE, "on stage pp/2"},
        {AT_LAST_MICROBATCH, "at the last micro-batch"},
        {AT_LAYER_MIDDLE, "at layer layers/2"},
        {AT_STAGE_ONE, "on stage 1"},
    };
    for (int i = 0; i < (int)(sizeof places / sizeof places[0]); i++) {
        if (at & places[i].bit) return places[i].text;
    }
    return "everywhere";
}

static void add_json(cJSON *list, const struct fault *fault)
{
    char text[256];
    cJSON *object = json_append_object(list);
    json_add_text(object, "name", fault->name);
    json_add_text(object, "component", fault->component);
    json_add_text(object, "site", listing_parts(fault, PART_SITE, text));
    json_add_text(object, "do", listing_parts(fault, PART_DEVIATION, text));
    json_add_list(object, "checks", fault->checks);
    json_add_text(object, "source", fault->source);
    json_add_text(object, "scenario", fault->scenario);
    json_add_text(object, "injected", fault->injected);
    json_add_text(object, "visible", fault->visible);
    cJSON *parts = json_add_array(object, "parts");
    for (int i = 0; i < fault->parts_count; i++) {
        const struct fault_part *part = &fault->parts[i];
        cJSON *item = json_append_object(parts);
        json_add_text(item, "site", part->site);
        json_add_text(item, "do", part->deviation);
        json_add_text(item, "argument", part->text);
        json_add_number(item, "value", part->value);
        json_add_text(item, "at", default_at(part->at));
    }
}

static void print_one(const struct fault *fault, const struct terminal *t)
{
    enum { LABEL = 12 };
    terminal_print(t, STYLE_BOLD, "%s\n", fault->name);
    terminal_paragraph(t, 2, "injected", LABEL, STYLE_DIM, fault->injected);
    terminal_paragraph(t, 2, "visible", LABEL, STYLE_DIM, fault->visible);
    terminal_paragraph(t, 2, "component", LABEL, STYLE_DIM, fault->component);
    for (int i = 0; i < fault->parts_count; i++) {
        const struct fault_part *part = &fault->parts[i];
        char line[320];
        snprintf(line, sizeof line, "%s:%s%s%s, %s", part->site, part->deviation,
                 part->text && part->text[0] ? " " : "", part->text ? part->text : "", default_at(part->at));
        terminal_paragraph(t, 2, i ? "" : "site:do", LABEL, STYLE_DIM, line);
    }
    terminal_paragraph(t, 2, "checks", LABEL, STYLE_DIM, fault->checks);
    terminal_paragraph(t, 2, "source", LABEL, STYLE_DIM, fault->source);
    terminal_paragraph(t, 2, "scenario", LABEL, STYLE_DIM, fault->scenario);
}

static void print_all(const struct terminal *t)
{
    static const char *const titles[] = {"fault", "component", "site", "do", "checks"};
    struct table *table = table_new(5, titles, "lllll");
    for (int i = 0; i < fault_count(); i++) {
        const struct fault *fault = fault_at(i);
        char text[256];
        table_add(table, STYLE_BOLD, "%s", fault->name);
        table_add(table, STYLE_NAME, "%s", fault->component);
        table_add(table, STYLE_PLAIN, "%s", listing_parts(fault, PART_SITE, text));
        table_add(table, STYLE_PLAIN, "%s", listing_parts(fault, PART_DEVIATION, text));
        table_add(table, STYLE_PLAIN, "%s", fault->checks);
    }
    table_print(table, t, 0);
    table_free(table);
    terminal_print(t, STYLE_DIM, "%d faults; hpsim faults NAME tells one whole\n", fault_count());
}

static int run(const struct options *options)
{
    const char *name = options->arguments_count ? options->arguments[0] : NULL;
    const struct fault *only = name ? fault_find(name) : NULL;
    if (name && !only) {
        const char **names = memory_alloc((size_t)(fault_count() + 1) * sizeof *names);
        for (int i = 0; i < fault_count(); i++) names[i] = fault_at(i)->name;
        int status = listing_unknown("fault", name, names, fault_count());
        free(names);
        return status;
    }
    if (!listing_wants_text(options)) {
        cJSON *list = cJSON_CreateArray();
        for (int i = 0; i < fault_count(); i++) {
            if (!only || fault_at(i) == only) add_json(list, fault_at(i));
        }
        return listing_json(options, list);
    }
    struct terminal terminal = terminal_new(stdout, options->color);
    if (only) print_one(only, &terminal);
    else print_all(&terminal);
    return EXIT_EXPECTED;
}

const struct command command_faults = {
    .name = "faults",
    .arguments = "[NAME]",
    .what = "what can be injected: the catalogue, or one entry whole",
    .text = "",
    .arguments_min = 0,
    .arguments_max = 1,
    .options = OPTION_BIT(JSON) | OPTION_BIT(COLOR),
    .run = run,
};
