/* sites: where faults can be injected and what can go wrong there: both tables, and which deviations a
 * site does not take for want of a facet. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "scenarios/fault_entry.h"
#include "sim/arena.h"
#include "tools/listing.h"
#include "tools/report/json_value.h"
#include "tools/report/table.h"

static int deviations_of(const struct site *site)
{
    int count = 0;
    for (int i = 0; i < deviation_registry_count(); i++) count += deviation_applies(deviation_registry_at(i), site);
    return count;
}

static int deviations_missing(const struct site *site)
{
    int count = 0;
    for (int i = 0; i < deviation_registry_count(); i++) {
        const struct deviation *d = deviation_registry_at(i);
        count += d->kind == site->kind && !deviation_applies(d, site);
    }
    return count;
}

static void add_json(cJSON *list, const struct site *site)
{
    char facets[FACETS_TEXT];
    cJSON *object = json_append_object(list);
    json_add_text(object, "name", site->name);
    json_add_text(object, "kind", site_kind_names[site->kind]);
    json_add_text(object, "component", site->component);
    json_add_list(object, "facets", listing_facets(site->facets, facets));
    cJSON *deviations = json_add_array(object, "deviations"), *missing = NULL;
    for (int i = 0; i < deviation_registry_count(); i++) {
        const struct deviation *d = deviation_registry_at(i);
        if (deviation_applies(d, site)) cJSON_AddItemToArray(deviations, cJSON_CreateString(d->name));
    }
    missing = json_add_array(object, "not_applicable");
    for (int i = 0; i < deviation_registry_count(); i++) {
        const struct deviation *d = deviation_registry_at(i);
        if (d->kind != site->kind || deviation_applies(d, site)) continue;
        cJSON *item = json_append_object(missing);
        json_add_text(item, "deviation", d->name);
        json_add_list(item, "missing", listing_facets(d->needs & ~site->facets, facets));
    }
    json_add_text(object, "what", site->what);
}

static void print_deviations_of(const struct site *site, const struct terminal *t)
{
    static const char *const titles[] = {"deviation", "argument (default)", "what goes wrong"};
    struct table *table = table_new(3, titles, "lll");
    char facets[FACETS_TEXT], argument[FAULT_ARGUMENT_TEXT];
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < deviation_registry_count(); i++) {
            const struct deviation *d = deviation_registry_at(i);
            bool applies = deviation_applies(d, site);
            if (d->kind != site->kind || applies == (pass == 1)) continue;
            table_add(table, applies ? STYLE_BOLD : STYLE_DIM, "%s", d->name);
            if (applies) table_add(table, STYLE_PLAIN, "%s", fault_argument_words(d, argument)[0] ? argument : "-");
            else table_add(table, STYLE_WARN, "needs %s", listing_facets(d->needs & ~site->facets, facets));
            table_add(table, applies ? STYLE_PLAIN : STYLE_DIM, "%s", d->what);
        }
    }
    table_print(table, t, 2);
    table_free(table);
}

static void print_one(const struct site *site, const struct terminal *t)
{
    char facets[FACETS_TEXT];
    enum { LABEL = 12 };
    terminal_print(t, STYLE_BOLD, "%s\n", site->name);
    terminal_paragraph(t, 2, "what", LABEL, STYLE_DIM, site->what);
    terminal_paragraph(t, 2, "kind", LABEL, STYLE_DIM, site_kind_names[site->kind]);
    terminal_paragraph(t, 2, "component", LABEL, STYLE_DIM, site->component);
    terminal_paragraph(t, 2, "facets", LABEL, STYLE_DIM, site->facets ? listing_facets(site->facets, facets) : "none");
    for (int i = 0, first = 1; i < fault_count(); i++) {
        const struct fault *fault = fault_at(i);
        bool here = false;
        for (int p = 0; p < fault->parts_count; p++) here = here || !strcmp(fault->parts[p].site, site->name);
        if (!here) continue;
        terminal_paragraph(t, 2, first ? "faults" : "", LABEL, STYLE_DIM, fault->name);
        first = 0;
    }
    terminal_print(t, STYLE_DIM, "deviations, injected with --fault %s:DEVIATION[@key=value,...]\n", site->name);
    print_deviations_of(site, t);
    terminal_print(t, STYLE_DIM, "hpsim faults --help tells how a fault is written\n");
}

static void print_site_table(const struct terminal *t)
{
    static const char *const titles[] = {"site", "kind", "component", "takes", "not", "facets"};
    struct table *table = table_new(6, titles, "lllrrl");
    int takes = 0, missing = 0;
    for (int i = 0; i < site_registry_count(); i++) {
        const struct site *site = site_registry_at(i);
        char facets[FACETS_TEXT];
        table_add(table, STYLE_BOLD, "%s", site->name);
        table_add(table, STYLE_PLAIN, "%s", site_kind_names[site->kind]);
        table_add(table, STYLE_NAME, "%s", site->component);
        table_add(table, STYLE_PLAIN, "%d", deviations_of(site));
        table_add(table, STYLE_DIM, "%d", deviations_missing(site));
        table_add(table, STYLE_PLAIN, "%s", listing_facets(site->facets, facets));
        takes += deviations_of(site);
        missing += deviations_missing(site);
    }
    table_print(table, t, 0);
    table_free(table);
    terminal_print(t, STYLE_DIM, "%d sites, %d pairs of site and deviation; %d more of the same kind lack a facet\n\n",
                   site_registry_count(), takes, missing);
}

/* How many sites of its kind a deviation is kept from, and by which facet. */
static void print_deviation_table(const struct terminal *t)
{
    static const char *const titles[] = {"deviation", "kind", "sites", "not", "for want of", "argument (default)", "what"};
    struct table *table = table_new(7, titles, "llrrlll");
    for (int i = 0; i < deviation_registry_count(); i++) {
        const struct deviation *d = deviation_registry_at(i);
        int takes = 0, missing = 0;
        unsigned wanted = 0;
        for (int s = 0; s < site_registry_count(); s++) {
            const struct site *site = site_registry_at(s);
            bool applies = deviation_applies(d, site);
            takes += applies;
            if (d->kind != site->kind || applies) continue;
            missing++;
            wanted |= d->needs & ~site->facets;
        }
        char facets[FACETS_TEXT], argument[FAULT_ARGUMENT_TEXT];
        table_add(table, STYLE_BOLD, "%s", d->name);
        table_add(table, STYLE_PLAIN, "%s", site_kind_names[d->kind]);
        table_add(table, STYLE_PLAIN, "%d", takes);
        table_add(table, STYLE_DIM, "%d", missing);
        table_add(table, STYLE_WARN, "%s", listing_facets(wanted, facets));
        table_add(table, STYLE_PLAIN, "%s", fault_argument_words(d, argument)[0] ? argument : "-");
        table_add(table, STYLE_PLAIN, "%s", d->what);
    }
    table_print(table, t, 0);
    table_free(table);
    terminal_print(t, STYLE_DIM, "%d deviations; hpsim sites NAME tells one site whole\n", deviation_registry_count());
}

static int run(const struct options *options)
{
    const char *name = options->arguments_count ? options->arguments[0] : NULL;
    const struct site *only = name ? site_registry_find(name) : NULL;
    if (name && !only) {
        const char **names = memory_alloc((size_t)(site_registry_count() + 1) * sizeof *names);
        for (int i = 0; i < site_registry_count(); i++) names[i] = site_registry_at(i)->name;
        int status = listing_unknown("site", name, names, site_registry_count());
        free(names);
        return status;
    }
    if (!listing_wants_text(options)) {
        cJSON *list = cJSON_CreateArray();
        for (int i = 0; i < site_registry_count(); i++) {
            if (!only || site_registry_at(i) == only) add_json(list, site_registry_at(i));
        }
        return listing_json(options, list);
    }
    struct terminal terminal = terminal_new(stdout, options->color);
    if (only) {
        print_one(only, &terminal);
    } else {
        print_site_table(&terminal);
        print_deviation_table(&terminal);
    }
    return EXIT_EXPECTED;
}

const struct command command_sites = {
    .name = "sites",
    .arguments = "[NAME]",
    .what = "where faults can be injected, and which deviations each place takes",
    .text = "",
    .arguments_min = 0,
    .arguments_max = 1,
    .options = OPTION_BIT(JSON) | OPTION_JSON_ALONE | OPTION_BIT(COLOR),
    .run = run,
};
