/* plugin: loading a shared object and reading its description. Nothing is believed that can be looked at. */
#include "model/plugin/plugin_internal.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/arena.h"

/* What the first version had: anything shorter is no description. */
enum { DESCRIPTION_LEAST = offsetof(struct hpsim_description, losses_count) + sizeof(int32_t), ENTRIES_MAX = 64 };

static void hint_build(struct error *error)
{
    error_hint(error, "cc -std=c99 -shared -fPIC -o mine.so mine.c makes one of a C file that includes hpsim.h");
}

static bool load(struct plugin *plugin, struct error *error)
{
    char path[sizeof plugin->path + 2];
    snprintf(path, sizeof path, "%s%s", strchr(plugin->path, '/') ? "" : "./", plugin->path); /* else dlopen searches */
    plugin->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (plugin->handle) return true;
    const char *why = dlerror(), *text = why ? why : "unknown reason";
    size_t length = strlen(path);
    if (!strncmp(text, path, length) && text[length] == ':') text += length + 1 + (text[length + 1] == ' ');
    error_input(error, "plug-in '%.300s' cannot be loaded: %.300s", plugin->path, text);
    hint_build(error);
    return false;
}

bool plugin_name_fits(const struct plugin *plugin, const char *kind, const char *name, struct error *error)
{
    if (!name || !*name) return error_input(error, "plug-in '%.300s': one %s has no name", plugin->path, kind);
    bool good = strlen(name) <= PLUGIN_NAME_MAX;
    for (const char *c = name; *c && good; c++) good = isgraph((unsigned char)*c) && *c != '\'' && *c != '"' && *c != '|' && *c != '\\';
    return good || error_input(error, "plug-in '%.300s': the name of one %s is '%.40s'; allowed: 1 to %d letters, digits and signs, no spaces, quotes, \\ or |",
                               plugin->path, kind, name, PLUGIN_NAME_MAX);
}

static bool list_fits(const struct plugin *plugin, const char *kind, const void *list, int count, struct error *error)
{
    if (count >= 0 && count <= ENTRIES_MAX && (count == 0 || list)) return true;
    return error_input(error, "plug-in '%.300s': %d %ss%s; allowed: 0 to %d, and a list of them", plugin->path, count, kind,
                       list ? "" : " in a list that is NULL", ENTRIES_MAX);
}

static bool description_fits(struct plugin *plugin, const struct hpsim_description *from, struct error *error)
{
    if (!from) return error_input(error, "plug-in '%.300s': hpsim_plugin() returned NULL", plugin->path);
    if (from->abi != HPSIM_ABI) {
        error_input(error, "plug-in '%.300s' is made for version %u of hpsim.h; this hpsim takes %d", plugin->path, from->abi, HPSIM_ABI);
        error_hint(error, "compile it again with this hpsim's hpsim.h, and set .abi = HPSIM_ABI");
        return false;
    }
    if (from->size < DESCRIPTION_LEAST) {
        error_input(error, "plug-in '%.300s': its description says that it has %u bytes; allowed: %d and more", plugin->path, from->size, DESCRIPTION_LEAST);
        error_hint(error, "set .size = sizeof (struct hpsim_description)");
        return false;
    }
    memcpy(&plugin->description, from, from->size < sizeof *from ? from->size : sizeof *from);
    const struct hpsim_description *d = &plugin->description;
    if (!plugin_name_fits(plugin, "plug-in", d->name, error)) return false;
    snprintf(plugin->name, sizeof plugin->name, "%s", d->name);
    snprintf(plugin->watch->name, sizeof plugin->watch->name, "%s", d->name);
    if (!list_fits(plugin, "algorithm", d->algorithms, d->algorithms_count, error) ||
        !list_fits(plugin, "schedule", d->schedules, d->schedules_count, error) || !list_fits(plugin, "loss", d->losses, d->losses_count, error))
        return false;
    if (d->attention && !plugin_name_fits(plugin, "attention", d->attention->name, error)) return false;
    if (d->attention && (context_method_find(d->attention->name) || !strcmp(d->attention->name, "plugin")))
        return error_input(error, "plug-in '%.300s': hpsim has a context method '%s' of its own", plugin->path, d->attention->name);
    if (d->attention && !d->attention->forward)
        return error_input(error, "plug-in '%.300s': its attention '%s' has no forward function", plugin->path, d->attention->name);
    if (d->attention || d->algorithms_count || d->schedules_count || d->losses_count) return true;
    return error_input(error, "plug-in '%.300s' brings nothing: no attention, algorithm, schedule or loss", plugin->path);
}

static bool twice(const struct plugin *plugin, const char *kind, const char *name, struct error *error)
{
    return error_input(error, "plug-in '%.300s' brings two %ss of the name '%s'; allowed: one", plugin->path, kind, name);
}

/* A run would take one of two and say nothing of the other. Algorithms of different operations may share a name. */
static bool names_differ(const struct plugin *plugin, struct error *error)
{
    const struct hpsim_description *d = &plugin->description;
    for (int i = 0; i < d->algorithms_count; i++) {
        const struct hpsim_algorithm *a = &d->algorithms[i];
        for (int j = 0; j < i; j++) {
            if (!strcmp(d->algorithms[j].name, a->name) && !strcmp(d->algorithms[j].operation, a->operation)) return twice(plugin, "algorithm", a->name, error);
        }
    }
    for (int i = 0; i < d->schedules_count; i++) {
        for (int j = 0; j < i; j++) {
            if (!strcmp(d->schedules[j].name, d->schedules[i].name)) return twice(plugin, "schedule", d->schedules[i].name, error);
        }
    }
    for (int i = 0; i < d->losses_count; i++) {
        for (int j = 0; j < i; j++) {
            if (!strcmp(d->losses[j].name, d->losses[i].name)) return twice(plugin, "loss normalization", d->losses[i].name, error);
        }
    }
    return true;
}

static bool describe(struct plugin *plugin, struct error *error)
{
    const struct hpsim_description *(*entry)(void) = NULL;
    void *symbol = dlsym(plugin->handle, "hpsim_plugin");
    if (!symbol) {
        error_input(error, "plug-in '%.300s' has no function hpsim_plugin", plugin->path);
        error_hint(error, "const struct hpsim_description *hpsim_plugin(void) is its entry; in C++ within extern \"C\"");
        return false;
    }
    memcpy(&entry, &symbol, sizeof entry); /* POSIX: a function's address is an object's */
    return description_fits(plugin, entry(), error) && plugin_algorithms_make(plugin, error) && plugin_schedules_make(plugin, error) &&
           plugin_losses_make(plugin, error) && names_differ(plugin, error);
}

struct plugin *plugin_open(const char *path, struct plugin_watch *watch, struct error *error)
{
    struct plugin *plugin = memory_zalloc(sizeof *plugin);
    if (strlen(path) >= sizeof plugin->path) {
        free(plugin);
        error_input(error, "the plug-in's path is longer than %zu bytes", sizeof plugin->path - 1);
        return NULL;
    }
    if (!watch) watch = plugin->own_watch = memory_zalloc(sizeof *watch);
    plugin->watch = watch;
    snprintf(plugin->path, sizeof plugin->path, "%s", path);
    snprintf(watch->path, sizeof watch->path, "%s", path);
    watch_enter(watch, &watch->slots[0], "loading");
    bool good = load(plugin, error) && describe(plugin, error);
    watch_leave(&watch->slots[0]);
    if (!good) {
        plugin_close(plugin);
        return NULL;
    }
    plugin_method_make(plugin);
    return plugin;
}

void plugin_close(struct plugin *plugin)
{
    if (!plugin) return;
    plugin_schedules_done(plugin);
    free(plugin->algorithms);
    free(plugin->losses);
    if (plugin->handle) dlclose(plugin->handle);
    free(plugin->own_watch);
    free(plugin);
}

const char *plugin_name(const struct plugin *plugin)
{
    return plugin->name;
}

const char *plugin_path(const struct plugin *plugin)
{
    return plugin->path;
}

static const char *algorithm_choice_at(const struct plugin *plugin, const char *op, int i)
{
    for (int a = 0; a < plugin->description.algorithms_count; a++) {
        const struct hpsim_algorithm *from = &plugin->description.algorithms[a];
        if (!strcmp(from->operation, op) && i-- == 0) return from->name;
    }
    return NULL;
}

const char *plugin_choice_at(const struct plugin *plugin, const char *key, int i)
{
    static const char collectives[] = "parallel.collectives.";
    if (!plugin) return NULL;
    const struct hpsim_description *d = &plugin->description;
    if (!strcmp(key, "parallel.pipeline.schedule")) return i < d->schedules_count ? d->schedules[i].name : NULL;
    if (!strcmp(key, "train.loss_normalization")) return i < d->losses_count ? d->losses[i].name : NULL;
    if (!strcmp(key, "parallel.context.method")) return !d->attention || i > 1 ? NULL : i == 0 ? "plugin" : d->attention->name;
    if (!strncmp(key, collectives, sizeof collectives - 1)) return algorithm_choice_at(plugin, key + sizeof collectives - 1, i);
    return NULL;
}
