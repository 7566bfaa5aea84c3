/* overrides: a path is names and list indices with dots between them, faults.0.at.step or faults[0].at.step. What is
 * missing on the way is made; a list may grow by one. */
#include "scenarios/overrides.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios/json_strict.h"
#include "scenarios/spelling.h"
#include "sim/arena.h"

enum { STEPS_MAX = 32, NAME_TEXT = 64, PATH_TEXT = 256 };
struct step { bool is_index; int index; char name[NAME_TEXT]; };
struct steps { int count; struct step step[STEPS_MAX]; };

cJSON *overrides_value(const char *text)
{
    struct error ignored = {0};
    struct json_map *map = json_strict(text, strlen(text), false, &ignored);
    json_map_free(map);
    if (map) return cJSON_Parse(text);
    return json_text_valid(text, strlen(text)) ? cJSON_CreateString(text) : NULL;
}

void overrides_expand_precision(cJSON *root)
{
    cJSON *precision = cJSON_GetObjectItemCaseSensitive(root, "precision");
    const char *names[KEY_CHILDREN_MAX];
    int count = key_children("precision", names);
    if (!cJSON_IsString(precision) || choice_find(key_find("precision.param")->options, precision->valuestring) < 0)
        return;
    cJSON *object = cJSON_CreateObject();
    for (int i = 0; i < count; i++) cJSON_AddStringToObject(object, names[i], precision->valuestring);
    cJSON_ReplaceItemInObjectCaseSensitive(root, "precision", object);
}

/* ---- paths ---- */

static bool add_step(struct steps *steps, const char *text, size_t length)
{
    if (length == 0 || length >= NAME_TEXT || steps->count == STEPS_MAX) return false;
    struct step *step = &steps->step[steps->count++];
    memcpy(step->name, text, length);
    step->name[length] = 0;
    size_t digits = strspn(step->name, "0123456789");
    step->is_index = digits == length && length <= 6;
    step->index = 0;
    for (size_t i = 0; step->is_index && i < length; i++) step->index = 10 * step->index + (step->name[i] - '0');
    return true;
}

static bool parse_path(const char *path, struct steps *ret_steps)
{
    ret_steps->count = 0;
    if (!json_text_valid(path, strlen(path))) return false;
    for (;;) {
        size_t length = strcspn(path, ".[]");
        if (!add_step(ret_steps, path, length)) return false;
        path += length;
        while (*path == '[') {
            length = strcspn(path + 1, "]");
            if (!path[length + 1] || !add_step(ret_steps, path + 1, length)) return false;
            if (!ret_steps->step[ret_steps->count - 1].is_index) return false;
            path += length + 2;
        }
        if (!*path) return true;
        if (*path++ != '.') return false;
    }
}

static void print_path(const struct steps *steps, int count, char *text, size_t size)
{
    struct phrase phrase = {text, size, 0};
    text[0] = 0;
    for (int i = 0; i < count; i++) {
        const struct step *step = &steps->step[i];
        if (step->is_index) phrase_add(&phrase, "[%d]", step->index);
        else phrase_add(&phrase, "%s%s", i ? "." : "", step->name);
    }
}

/* ---- the tree ---- */

static cJSON *child_of(cJSON *parent, const struct step *step)
{
    if (cJSON_IsArray(parent)) return step->is_index ? cJSON_GetArrayItem(parent, step->index) : NULL;
    return cJSON_GetObjectItemCaseSensitive(parent, step->name);
}

/* Takes the value over. False: there is no such place. */
static bool put(cJSON *parent, const struct step *step, cJSON *value)
{
    cJSON *old = child_of(parent, step);
    if (cJSON_IsArray(parent) && !old)
        return step->is_index && step->index == cJSON_GetArraySize(parent) && cJSON_AddItemToArray(parent, value);
    if (!old) return cJSON_AddItemToObject(parent, step->name, value);
    if (cJSON_IsArray(parent)) return cJSON_ReplaceItemInArray(parent, step->index, value);
    return cJSON_ReplaceItemInObjectCaseSensitive(parent, step->name, value);
}

static bool fail_step(struct reader *reader, const struct steps *steps, int depth, const cJSON *parent)
{
    char path[PATH_TEXT], found[96];
    print_path(steps, depth, path, sizeof path);
    if (cJSON_IsArray(parent)) {
        int count = cJSON_GetArraySize(parent);
        return reader_fail(reader, path, "'%s' is no index of this list of %d; allowed: 0 to %d",
                           steps->step[depth].name, count, count);
    }
    reader_describe(parent, found, sizeof found);
    return reader_fail(reader, path, "%s has no key '%s'", found, steps->step[depth].name);
}

/* Takes the value over. */
static bool merge(struct reader *reader, const struct steps *steps, cJSON *value)
{
    cJSON *parent = reader->root;
    for (int i = 0; i < steps->count; i++) {
        bool last = i == steps->count - 1;
        const struct step *step = &steps->step[i];
        if (!cJSON_IsObject(parent) && !cJSON_IsArray(parent)) {
            cJSON_Delete(value);
            return fail_step(reader, steps, i, parent);
        }
        cJSON *child = child_of(parent, step);
        bool is_open = child && !cJSON_IsNull(child);
        cJSON *fresh = last                          ? value
                       : is_open                     ? NULL
                       : steps->step[i + 1].is_index ? cJSON_CreateArray()
                                                     : cJSON_CreateObject();
        if (fresh && !put(parent, step, fresh)) {
            if (fresh != value) cJSON_Delete(fresh);
            cJSON_Delete(value);
            return fail_step(reader, steps, i, parent);
        }
        if (last) return true;
        parent = child_of(parent, step);
    }
    return true;
}

static bool merge_one(struct reader *reader, const struct override *override)
{
    struct steps steps;
    char path[PATH_TEXT] = "", shown[FOREIGN_TEXT];
    bool good = parse_path(override->path, &steps);
    if (good) print_path(&steps, steps.count, path, sizeof path);
    reader->override_paths[reader->overrides_count++] = memory_strdup(path);
    if (!good)
        return reader_fail(reader, path, "'%s' is not a path such as parallel.pp or faults.0.at.step",
                           foreign(override->path, shown));
    cJSON *value = overrides_value(override->value);
    if (!value)
        return reader_fail(reader, path, "'%s' is not UTF-8 text without control characters",
                           foreign(override->value, shown));
    if (!merge(reader, &steps, value)) return false;
    overrides_expand_precision(reader->root);
    return true;
}

bool overrides_merge(struct reader *reader, int count, const struct override *overrides)
{
    reader->overrides = overrides;
    reader->override_paths = memory_zalloc((size_t)(count + 1) * sizeof *reader->override_paths);
    for (int i = 0; i < count; i++) {
        if (!merge_one(reader, &overrides[i])) return false;
    }
    return true;
}

void overrides_done(struct reader *reader)
{
    for (int i = 0; i < reader->overrides_count; i++) free(reader->override_paths[i]);
    free(reader->override_paths);
}
