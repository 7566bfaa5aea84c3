/* faults: the catalogue, from its registry. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "scenarios/fault_entry.h"
#include "sim/arena.h"
#include "tools/listing.h"
#include "tools/report/json_value.h"
#include "tools/report/table.h"

enum { PLACES_TEXT = 256 };

/* Where a fault is injected unless the scenario says where. */
static const char *default_at(unsigned at, char text[PLACES_TEXT])
{
    static const struct { unsigned bit; const char *text; } places[] = {
        {AT_STAGES_BUT_FIRST, "on every stage but the first"},
        {AT_STAGE_MIDDLE, "on stage pp/2"},
        {AT_STAGE_ONE, "on stage 1"},
        {AT_STAGE_FIRST, "on the first stage"},
        {AT_STAGE_LAST, "on the last stage"},
        {AT_RANK_ONE, "on rank 1"},
        {AT_DATA_RANK_ONE, "on data rank 1 of the last stage"},
        {AT_DATA_RANK_ONE_OF_MIDDLE, "on data rank 1 of stage pp/2"},
        {AT_LAYER_MIDDLE, "at layer layers/2"},
        {AT_NO_LAYER, "at the units that are no layer"},
        {AT_LAST_MICROBATCH, "at the last micro-batch"},
        {AT_MICROBATCHES_BUT_LAST, "at every micro-batch but the last"},
        {AT_MICROBATCH_ZERO, "at micro-batch 0"},
        {AT_MICROBATCH_ONE, "at micro-batch 1"},
        {AT_STEP_ONE, "in step 1"},
        {AT_HOP_ONE, "at hop 1"},
        {AT_HOP_LAST, "at the last hop of keys and values"},
        {AT_HOP_HOME, "at the last hop of gradients, home"},
    };
    size_t used = 0;
    snprintf(text, PLACES_TEXT, "everywhere");
    for (int i = 0; i < (int)(sizeof places / sizeof places[0]); i++) {
        if (at & places[i].bit && used < PLACES_TEXT)
            used += (size_t)snprintf(text + used, PLACES_TEXT - used, "%s%s", used ? " " : "", places[i].text);
    }
    return text;
}

static void add_json(cJSON *list, const struct fault *fault)
{
    char text[256], places[PLACES_TEXT];
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
        json_add_text(item, "at", default_at(part->at, places));
    }
}

/* "factor or value" of any of its parts, each once; "nothing" where it takes none. */
static const char *arguments_of(const struct fault *fault, char text[320])
{
    size_t used = 0;
    for (int i = 0; i < fault->parts_count; i++) {
        const struct site *site = site_registry_find(fault->parts[i].site);
        const struct deviation *deviation = site ? deviation_registry_find(fault->parts[i].deviation, site->kind) : NULL;
        char words[FAULT_ARGUMENT_TEXT] = "";
        if (deviation) fault_argument_words(deviation, words);
        words[strcspn(words, "(,")] = 0; /* the catalogue's own argument stands above, not the deviation's default */
        size_t length = strlen(words);
        if (length && words[length - 1] == ' ') words[length - 1] = 0;
        if (words[0] && (used == 0 || !strstr(text, words)))
            used += (size_t)snprintf(text + used, 320 - used, "%s%s", used ? ", " : "", words);
    }
    if (used == 0) snprintf(text, 320, "nothing");
    return text;
}

/* How it is written on the command line and in a file, with what it takes. */
static void print_usage(const struct fault *fault, int label, const struct terminal *t)
{
    char line[512], arguments[320];
    snprintf(line, sizeof line, "--fault %s, or with a place: --fault %s@step=1,rank=0", fault->name, fault->name);
    terminal_paragraph(t, 2, "inject", label, STYLE_DIM, line);
    snprintf(line, sizeof line, "{\"fault\": \"%s\", \"at\": {\"step\": 1, \"rank\": 0}}", fault->name);
    terminal_paragraph(t, 2, "in a file", label, STYLE_DIM, line);
    snprintf(line, sizeof line, "%s beside the places (hpsim faults --help)", arguments_of(fault, arguments));
    terminal_paragraph(t, 2, "takes", label, STYLE_DIM, line);
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
        char line[512], places[PLACES_TEXT];
        snprintf(line, sizeof line, "%s:%s%s%s, %s", part->site, part->deviation,
                 part->text && part->text[0] ? " " : "", part->text ? part->text : "", default_at(part->at, places));
        terminal_paragraph(t, 2, i ? "" : "site:do", LABEL, STYLE_DIM, line);
    }
    print_usage(fault, LABEL, t);
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
    terminal_print(t, STYLE_DIM, "%d faults; hpsim faults NAME tells one whole, hpsim faults --help how one is written\n", fault_count());
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
    .text =
        "A fault is written --fault NAME[@key=value,...], in a file {\"fault\": NAME, \"at\": {key: value}, ...}. NAME is one of "
        "this catalogue, or SITE:DEVIATION (hpsim sites lists both). Keys that say where: rank, stage, step, microbatch, layer, "
        "each a number, or several as 6+7, in a file [6, 7]; param, a parameter's name, * at its end for anything. What is left "
        "out is everywhere, or where the catalogue has it. Keys that say what, of those the deviation takes: factor (a number or "
        "an expression such as 1/M), value, group, op, format, index. Also: once (only the first time on each rank), "
        "in=parallel, in=standalone or in=both. For instance --fault fsdp.reduce_grad:scale@factor=1/D,rank=6+7,step=1. "
        "docs/faults.md has all of it, with examples.",
    .arguments_min = 0,
    .arguments_max = 1,
    .options = OPTION_BIT(JSON) | OPTION_JSON_ALONE | OPTION_BIT(COLOR),
    .run = run,
};
