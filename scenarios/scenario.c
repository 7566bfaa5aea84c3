/* scenario: from a file to validated data.
 *
 *   bytes -> strict pass with places -> cJSON tree -> (expect dropped) -> --set merged -> keys, types, ranges
 *         -> defaults and arithmetic -> text -> faults -> expectation -> size
 * The first thing that is wrong ends it. */
#include "scenarios/scenario.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/context/context.h"
#include "model/plugin/plugin.h"
#include "scenarios/check.h"
#include "scenarios/corpus.h"
#include "scenarios/fault_entry.h"
#include "scenarios/input_file.h"
#include "scenarios/json_strict.h"
#include "scenarios/locale_c.h"
#include "scenarios/overrides.h"
#include "scenarios/spelling.h"
#include "scenarios/key_use.h"
#include "scenarios/validate.h"
#include "sim/arena.h"

enum { FILE_BYTES_MAX = 16 << 20, TEXT_BYTES_MAX = 64 << 20 };
static const char shipped_text[] = "corpus.txt";

const char *const verdict_names[] = {"consistent", "diverged", "violated", "deadlock"};

void scenario_free(struct scenario *scenario)
{
    if (!scenario) return;
    plugin_close(scenario->plugin);
    free(scenario->text);
    free(scenario);
}

/* ---- the file ---- */

/* Fills the reader's tree and map. */
static bool read_tree(struct reader *reader)
{
    size_t bytes = 0;
    char *text = input_file_read(reader->file, FILE_BYTES_MAX, "", &bytes, reader->error);
    if (text) reader->map = json_strict(text, bytes, true, reader->error);
    if (reader->map) reader->root = cJSON_ParseWithLength(text, bytes);
    if (reader->map && !reader->root)
        error_internal(reader->error, "cJSON does not read what the strict pass found good");
    free(text);
    error_at(reader->error, error_is_set(reader->error) ? reader->file : NULL, 0, 0, NULL);
    return reader->root != NULL;
}


/* The tree as it is to be read: what the file expects holds for its own faults only. */
static bool apply_options(struct reader *reader, const struct scenario_options *options)
{
    bool other_faults = options->faults_count > 0 || options->no_faults;
    if (other_faults) cJSON_DeleteItemFromObjectCaseSensitive(reader->root, "expect");
    overrides_expand_precision(reader->root);
    return overrides_merge(reader, options->overrides_count, options->overrides);
}

static bool read_keys(struct reader *reader, struct draft *draft)
{
    const cJSON *precision = reader_item(reader, "precision");
    if (!reader_has(reader, "parallel")) {
        reader_fail(reader, "parallel", "'parallel' is missing; it is the one key without a default");
        error_hint(reader->error, "\"parallel\": {} is one rank, \"parallel\": {\"pp\": 4, \"dp_shard\": 2} eight");
        return false;
    }
    if (cJSON_IsString(precision)) { /* a format would have become an object */
        char found[96], allowed[256];
        reader_describe(precision, found, sizeof found);
        key_allowed(key_find("precision.param"), allowed, sizeof allowed);
        return reader_fail(reader, "precision", "%s found; allowed: %s, or an object", found, allowed);
    }
    return reader_check_keys(reader, reader->root, "", "") && reader_read(reader, reader->root, "", "", draft);
}

/* ---- files beside it ---- */

static bool resolve(struct reader *reader, const char *key, const char *name, char *path, size_t size)
{
    const char *slash = strrchr(reader->file, '/');
    int folder = *name == '/' || !slash ? 0 : (int)(slash - reader->file) + 1;
    int length = snprintf(path, size, "%.*s%s", folder, reader->file, name);
    return (size_t)length < size || reader_fail(reader, key, "the path is longer than %zu bytes", size - 1);
}

static bool load_text(struct reader *reader, struct draft *draft)
{
    struct scenario *scenario = &draft->scenario;
    struct error error = {0};
    char subject[FOREIGN_TEXT + 16], shown[FOREIGN_TEXT];
    size_t bytes = 0;
    if (!resolve(reader, "data.text", draft->text, scenario->text_path, sizeof scenario->text_path)) return false;
    if (!strcmp(draft->text, shipped_text) && access(scenario->text_path, F_OK) != 0) {
        bytes = corpus_bytes;
        scenario->text = memory_alloc(bytes);
        memcpy(scenario->text, corpus_text, bytes);
        snprintf(scenario->text_path, sizeof scenario->text_path, "%s", shipped_text);
    } else {
        snprintf(subject, sizeof subject, "text '%s' ", foreign(draft->text, shown));
        scenario->text = (uint8_t *)input_file_read(scenario->text_path, TEXT_BYTES_MAX, subject, &bytes, &error);
        if (!scenario->text) return reader_fail(reader, "data.text", "%s", error.message);
    }
    if (bytes < 2)
        return reader_fail(reader, "data.text",
                           "text '%s' has 1 byte; allowed: 2 at least, one to predict from the other",
                           foreign(draft->text, shown));
    scenario->config.data.text = scenario->text;
    scenario->config.data.text_bytes = (int64_t)bytes;
    return true;
}

static bool find_weights(struct reader *reader, struct draft *draft)
{
    struct model_config *model = &draft->scenario.config.model;
    struct error error = {0};
    char subject[FOREIGN_TEXT + 16], shown[FOREIGN_TEXT];
    if (!draft->weights[0]) return true;
    if (!resolve(reader, "model.weights", draft->weights, model->weights, sizeof model->weights)) return false;
    snprintf(subject, sizeof subject, "weights '%s' ", foreign(draft->weights, shown));
    return input_file_check(model->weights, subject, &error) ||
           reader_fail(reader, "model.weights", "%s", error.message);
}

/* Opened before anything else is read: the names that it brings may stand anywhere in the file. */
static bool open_plugin(struct reader *reader, const struct scenario_options *options, struct draft *draft)
{
    const cJSON *item = reader_item(reader, "plugin");
    struct error error = {0};
    char path[1024], subject[FOREIGN_TEXT + 16], shown[FOREIGN_TEXT];
    if (!cJSON_IsString(item) || strlen(item->valuestring) >= sizeof draft->plugin) return true; /* null, or what reading the keys refuses */
    snprintf(subject, sizeof subject, "plug-in '%s' ", foreign(item->valuestring, shown));
    if (!resolve(reader, "plugin", item->valuestring, path, sizeof path)) return false;
    bool there = input_file_check(path, subject, &error);
    if (there) draft->scenario.plugin = plugin_open(path, options->watch, &error);
    if (!draft->scenario.plugin) {
        reader_fail(reader, "plugin", "%s", error.message);
        if (!there) error_hint(reader->error, "it is looked for as %s: paths are relative to the scenario file", path);
        else error_hint(reader->error, "%s", error.hint[0] ? error.hint : "hpsim.h says what a plug-in describes");
        return false;
    }
    draft->scenario.config.plugin = reader->plugin = draft->scenario.plugin;
    return true;
}

/* An attention of its own is what a plug-in that brings one is for. */
static void choose_plugin(struct reader *reader, struct draft *draft)
{
    struct context_config *context = &draft->scenario.config.layout.context;
    const struct context_method *method = plugin_method(reader->plugin);
    if (method && !reader_has(reader, "parallel.context.method")) snprintf(context->method, sizeof context->method, "%s", method->name);
}

static bool prepare_plugin(struct reader *reader, struct draft *draft)
{
    const struct run_config *config = &draft->scenario.config;
    struct plugin *plugin = draft->scenario.plugin;
    struct error error = {0};
    if (!plugin) return true;
    if (!plugin_schedule_prepare(plugin, config->layout.schedule, config->layout.pp, config->layout.microbatches, &error))
        return reader_fail(reader, "parallel.pipeline.schedule", "%s", error.message);
    return plugin_attention_fits(plugin, config, &error) || reader_fail(reader, "parallel.context.method", "%s", error.message);
}

/* ---- faults and what is expected ---- */

static bool read_faults(struct reader *reader, const struct scenario_options *options, struct scenario *scenario)
{
    const cJSON *list = reader_item(reader, "faults");
    int own = options->no_faults || !list ? 0 : cJSON_GetArraySize(list), index = 0;
    if (own + options->faults_count > FAULTS_MAX) {
        return reader_fail(reader, "faults", "%d faults of the file and %d of --fault; at most %d are allowed", own,
                           options->faults_count, FAULTS_MAX);
    }
    /* The file's own are read even where --no-faults drops them: a file is right or wrong as it stands. */
    for (const cJSON *item = list ? list->child : NULL; item; item = item->next, index++) {
        char path[32];
        struct fault_entry entry;
        snprintf(path, sizeof path, "faults[%d]", index);
        if (!fault_entry_read(reader, item, path, &entry)) return false;
        if (!options->no_faults) scenario->faults[scenario->faults_count++] = entry;
    }
    for (int i = 0; i < options->faults_count; i++) {
        if (!fault_entry_parse(reader, options->faults[i], &scenario->faults[scenario->faults_count++])) return false;
    }
    return true;
}

static bool fail_name(struct reader *reader, const char *path, const char *kind, const char *name,
                      const char *const *names, int count)
{
    char shown[FOREIGN_TEXT];
    const char *near = spelling_nearest(name, names, count);
    if (near) reader_fail(reader, path, "unknown %s '%s'; did you mean '%s'?", kind, foreign(name, shown), near);
    else reader_fail(reader, path, "unknown %s '%s'", kind, foreign(name, shown));
    error_hint(reader->error, "hpsim %ss lists them", kind);
    return false;
}

static bool check_expected_names(struct reader *reader, const struct expectation *expect)
{
    const char **names = memory_alloc((size_t)(site_registry_count() + check_count()) * sizeof *names);
    bool good = true;
    if (expect->site[0] && !site_registry_find(expect->site)) {
        for (int i = 0; i < site_registry_count(); i++) names[i] = site_registry_at(i)->name;
        good = fail_name(reader, "expect.site", "site", expect->site, names, site_registry_count());
    }
    for (int c = 0; c < expect->checks_count && good; c++) {
        char path[48];
        if (check_find_by_id(expect->checks[c])) continue;
        for (int i = 0; i < check_count(); i++) names[i] = check_at(i)->id;
        snprintf(path, sizeof path, "expect.checks[%d]", c);
        good = fail_name(reader, path, "check", expect->checks[c], names, check_count());
    }
    free(names);
    return good;
}

static bool read_expectation(struct reader *reader, struct expectation *expect)
{
    const cJSON *checks = reader_item(reader, "expect.checks");
    expect->given = reader_has(reader, "expect");
    for (const cJSON *item = checks ? checks->child : NULL; item; item = item->next) {
        snprintf(expect->checks[expect->checks_count++], sizeof expect->checks[0], "%s", item->valuestring);
    }
    return check_expected_names(reader, expect);
}

/* ---- all of it ---- */

static void set_names(struct scenario *scenario, const char *path)
{
    snprintf(scenario->file, sizeof scenario->file, "%s", path);
    if (scenario->name[0]) return;
    const char *slash = strrchr(path, '/'), *stem = slash ? slash + 1 : path, *dot = strrchr(stem, '.');
    snprintf(scenario->name, sizeof scenario->name, "%.*s", dot && dot > stem ? (int)(dot - stem) : (int)strlen(stem),
             stem);
}

static bool load(struct reader *reader, const struct scenario_options *options, struct draft *draft)
{
    struct scenario *scenario = &draft->scenario;
    if (strlen(reader->file) >= sizeof scenario->file)
        return error_input(reader->error, "the scenario's path is longer than %zu bytes", sizeof scenario->file - 1);
    if (!read_tree(reader) || !apply_options(reader, options) || !open_plugin(reader, options, draft) || !read_keys(reader, draft)) return false;
    choose_plugin(reader, draft);
    set_names(scenario, reader->file);
    if (options->seed_given) scenario->config.seed = options->seed;
    return key_use_check(reader, scenario->config.workload, scenario->config.layout.context.method) && validate_scenario(reader, draft) && prepare_plugin(reader, draft) && find_weights(reader, draft) && load_text(reader, draft) &&
           read_faults(reader, options, scenario) && read_expectation(reader, &scenario->expect) &&
           validate_size(reader, scenario);
}

struct scenario *scenario_load(const char *path, const struct scenario_options *options, struct error *error)
{
    static const struct scenario_options none;
    struct locale_c locale = locale_c_enter();
    struct reader reader = {.file = path, .error = error};
    struct draft *draft = memory_zalloc(sizeof *draft);
    struct scenario *scenario = NULL;
    if (load(&reader, options ? options : &none, draft)) {
        scenario = memory_alloc(sizeof *scenario);
        *scenario = draft->scenario;
    } else {
        free(draft->scenario.text);
        plugin_close(draft->scenario.plugin);
    }
    overrides_done(&reader);
    json_map_free(reader.map);
    cJSON_Delete(reader.root);
    free(draft);
    locale_c_leave(locale);
    return scenario;
}

bool scenario_has_plugin(const char *path, const struct scenario_options *options)
{
    struct error unseen = {0};
    struct locale_c locale = locale_c_enter();
    struct reader reader = {.file = path, .error = &unseen};
    bool found = read_tree(&reader) && apply_options(&reader, options) && cJSON_IsString(reader_item(&reader, "plugin"));
    overrides_done(&reader);
    json_map_free(reader.map);
    cJSON_Delete(reader.root);
    locale_c_leave(locale);
    return found;
}
