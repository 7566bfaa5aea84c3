/* schema: the keys of scenario files, from the table that the loader reads by: the JSON Schema, one key in words, or all as
 * the page docs/scenario.md. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "scenarios/key_use.h"
#include "scenarios/keys.h"
#include "scenarios/spelling.h"
#include "tools/command.h"
#include "tools/report/table.h"

enum { LABEL = 12, ALLOWED_TEXT = 1024 };

static bool is_section(const struct key *key)
{
    return key->type == KEY_SECTION || key->type == KEY_SECTIONS;
}

/* "an integer from 1 to 1024", with the unit: "a number from 0 to 1000000000, us" */
static const char *allowed_words(const struct key *key, char text[ALLOWED_TEXT])
{
    key_allowed(key, text, ALLOWED_TEXT);
    size_t used = strlen(text);
    if (*key->unit) snprintf(text + used, ALLOWED_TEXT - used, ", %s", key->unit);
    if (!strcmp(key->path, "precision")) snprintf(text, ALLOWED_TEXT, "an object, or one format for all its keys");
    return text;
}

static void print_schema(void)
{
    char *schema = scenario_schema();
    size_t length = strlen(schema);
    fputs(schema, stdout);
    if (length == 0 || schema[length - 1] != '\n') putchar('\n');
    free(schema);
}

/* ---- one key, one section ---- */

static void print_key(const struct key *key, const struct terminal *t)
{
    char allowed[ALLOWED_TEXT], words[KEY_WORDS];
    terminal_print(t, STYLE_BOLD, "%s\n", key->path);
    terminal_paragraph(t, 2, "meaning", LABEL, STYLE_DIM, key->what);
    terminal_paragraph(t, 2, "allowed", LABEL, STYLE_DIM, allowed_words(key, allowed));
    if (!is_section(key)) terminal_paragraph(t, 2, "default", LABEL, STYLE_DIM, key_default(key, words));
    if (key_there(key, words)[0]) terminal_paragraph(t, 2, "there", LABEL, STYLE_WARN, words);
    if (key_used_by(key, words, sizeof words)[0]) terminal_paragraph(t, 2, "read by", LABEL, STYLE_DIM, words);
    if (key_example(key, words)[0]) terminal_paragraph(t, 2, "example", LABEL, STYLE_DIM, words);
}

static void print_members(const struct key *section, const struct terminal *t)
{
    static const char *const titles[] = {"key", "default", "meaning"};
    struct table *table = table_new(3, titles, "lll");
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        char words[KEY_WORDS];
        if (!key_is_within(key, section)) continue;
        table_add(table, STYLE_BOLD, "%s", key->path);
        table_add(table, STYLE_PLAIN, "%s", is_section(key) ? "" : key_default(key, words));
        table_add(table, STYLE_PLAIN, "%s", key->what);
    }
    table_print(table, t, 2);
    table_free(table);
    terminal_print(t, STYLE_DIM, "hpsim schema KEY tells one whole\n");
}

static int unknown(const char *typed)
{
    struct error error = {0};
    char shown[FOREIGN_TEXT], hint[sizeof error.hint];
    key_hint(typed, hint, sizeof hint);
    error_input(&error, "unknown key \"%s\"", foreign(typed, shown));
    error_hint(&error, "%s", hint);
    return command_fail(&error);
}

/* ---- the page ---- */

/* A cell of a table: no bar that would end it. */
static void print_cell(const char *text)
{
    printf(" ");
    for (; *text; text++) {
        if (*text == '|') putchar('\\');
        putchar(*text);
    }
    printf(" |");
}

static void print_row(const struct key *key)
{
    char text[ALLOWED_TEXT + KEY_WORDS], words[KEY_WORDS], allowed[ALLOWED_TEXT];
    snprintf(text, sizeof text, "`%s`", key->path);
    printf("|");
    print_cell(text);
    print_cell(allowed_words(key, allowed));
    if (*key->fallback == '=') snprintf(text, sizeof text, "%s", key_default(key, words));
    else snprintf(text, sizeof text, "`%s`", key_default(key, words));
    print_cell(is_section(key) ? "" : text);
    char by[160];
    snprintf(text, sizeof text, "%s%s%s%s%s", key->what, key_there(key, words)[0] ? "; " : "", words, key_used_by(key, by, sizeof by)[0] && !is_section(key) ? "; read by " : "", is_section(key) ? "" : by);
    print_cell(text);
    printf("\n");
}

static bool begins_part(const struct key *key)
{
    return is_section(key) && !strpbrk(key->path, ".[");
}

static void print_page(void)
{
    puts("# Every key of a scenario\n\n"
         "A scenario is one JSON object; [walkthrough.md](walkthrough.md) writes one from an empty file. Every key has a default but\n"
         "`parallel`, and an unknown one is an error that names the nearest. Any can be set from the command line, `--set KEY=VALUE`.\n"
         "`hpsim schema KEY` tells one, with an example; `hpsim schema` is the same as a JSON Schema, for an editor.\n\n"
         "This page is printed by `hpsim schema --markdown`, from the table that the loader reads by; a test holds them equal.\n");
    bool of_table = false;
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        if (begins_part(key)) {
            printf("\n## %s: %s\n\n", key->path, key->what);
            of_table = false;
            if (key->type == KEY_SECTIONS) printf("How a fault is written, and what each takes: [faults.md](faults.md).\n\n");
        } else if (i > 0 && !strpbrk(key->path, ".[") && strpbrk(key_at(i - 1)->path, ".[")) {
            printf("\n## %s\n\n", key->path);
            of_table = false;
        } else if (i == 0) {
            printf("\n## The scenario itself\n\n");
        }
        if (begins_part(key) && strcmp(key->path, "precision") != 0) continue;
        if (!of_table) puts("| key | allowed | default | meaning |\n|---|---|---|---|");
        of_table = true;
        print_row(key);
    }
}

static int run(const struct options *options)
{
    const char *typed = options->arguments_count ? options->arguments[0] : NULL;
    const struct key *key = typed ? key_look_up(typed) : NULL;
    if (typed && !key) return unknown(typed);
    if (key) {
        struct terminal terminal = terminal_new(stdout, options->color);
        print_key(key, &terminal);
        if (is_section(key)) print_members(key, &terminal);
    } else if (options->markdown) {
        print_page();
    } else {
        print_schema();
    }
    return EXIT_EXPECTED;
}

const struct command command_schema = {
    .name = "schema",
    .arguments = "[KEY]",
    .what = "prints the JSON Schema of scenario files, or tells one key or section of them",
    .text = "KEY is dotted, as for --set: parallel.fsdp.zero, or a section: parallel.fsdp. docs/scenario.md has all.",
    .arguments_min = 0,
    .arguments_max = 1,
    .options = OPTION_BIT(MARKDOWN) | OPTION_BIT(COLOR),
    .run = run,
};
