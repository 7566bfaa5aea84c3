/* reader: places and unknown keys; values are in reader_value.c. */
#include "scenarios/reader.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "scenarios/spelling.h"

enum { PATH_TEXT = 256 };

/* ---- places ---- */

/* Is one of the two the other, or above it? */
static bool are_related(const char *a, const char *b)
{
    size_t la = strlen(a), lb = strlen(b), shorter = la < lb ? la : lb;
    if (strncmp(a, b, shorter) != 0) return false;
    const char *rest = la < lb ? b + shorter : a + shorter;
    return !*rest || *rest == '.' || *rest == '[';
}

/* The last --set that has to do with this path; -1: none. */
static int override_of(const struct reader *reader, const char *path)
{
    for (int i = reader->overrides_count - 1; i >= 0; i--) {
        if (are_related(reader->override_paths[i], path)) return i;
    }
    return -1;
}

/* A --fault or a --set, where the path comes from one. */
static bool set_option_place(struct reader *reader, const char *path)
{
    char place[256], value[FOREIGN_TEXT], name[FOREIGN_TEXT];
    int override = override_of(reader, path);
    if (!reader->place && override < 0) return false;
    if (override >= 0) {
        snprintf(place, sizeof place, "--set %s=%s", foreign(reader->overrides[override].path, name),
                 foreign(reader->overrides[override].value, value));
    }
    error_at(reader->error, reader->place ? reader->place : place, 0, 0, path);
    return true;
}

static bool fail(struct reader *reader, const char *path, const char *format, va_list arguments)
{
    char message[sizeof reader->error->message];
    vsnprintf(message, sizeof message, format, arguments);
    error_input(reader->error, "%s", message);
    if (set_option_place(reader, path)) return false;
    bool exact = false;
    int node = json_map_find(reader->map, path, &exact);
    struct json_place place = node >= 0 ? json_map_value_place(reader->map, node) : (struct json_place){0, 0};
    error_at(reader->error, reader->file, place.line, place.column, path);
    return false;
}

bool reader_fail(struct reader *reader, const char *path, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail(reader, path, format, arguments);
    va_end(arguments);
    return false;
}

bool reader_fail_among(struct reader *reader, const char *const *paths, const char *format, ...)
{
    const char *blamed = NULL;
    bool exact = false;
    for (int i = 0; paths[i] && !blamed; i++) {
        if (override_of(reader, paths[i]) >= 0) blamed = paths[i];
    }
    for (int i = 0; paths[i] && !blamed; i++) {
        if (json_map_find(reader->map, paths[i], &exact) >= 0 && exact) blamed = paths[i];
    }
    va_list arguments;
    va_start(arguments, format);
    fail(reader, blamed ? blamed : paths[0], format, arguments);
    va_end(arguments);
    return false;
}

/* ---- the tree ---- */

const cJSON *reader_descend(const cJSON *object, const char *path)
{
    const cJSON *item = object;
    char name[64];
    while (item && *path) {
        size_t length = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)length, path);
        item = cJSON_GetObjectItemCaseSensitive(item, name);
        path += length;
        path += *path == '.';
    }
    return item;
}

const cJSON *reader_item(const struct reader *reader, const char *path)
{
    return reader_descend(reader->root, path);
}

bool reader_has(const struct reader *reader, const char *path)
{
    return reader_item(reader, path) != NULL;
}

void reader_describe(const cJSON *item, char *text, size_t size)
{
    char shown[FOREIGN_TEXT];
    if (cJSON_IsString(item)) {
        snprintf(text, size, "'%s'", foreign(item->valuestring, shown));
    } else if (cJSON_IsNumber(item)) {
        snprintf(text, size, "%.15g", item->valuedouble);
    } else {
        const char *what = cJSON_IsArray(item)    ? "a list"
                           : cJSON_IsObject(item) ? "an object"
                           : cJSON_IsNull(item)   ? "null"
                           : cJSON_IsTrue(item)   ? "true"
                                                  : "false";
        snprintf(text, size, "%s", what);
    }
}

/* ---- unknown keys ---- */

static void join(char *text, size_t size, const char *section, const char *name)
{
    struct phrase phrase = {text, size, 0};
    text[0] = 0;
    phrase_add(&phrase, "%s%s", section, *section ? "." : "");
    phrase_add_foreign(&phrase, name);
}

/* The place of a key is found from its parent, since the key itself may hold dots and brackets. */
static void set_key_place(struct reader *reader, const char *parent, const char *name, const char *path)
{
    if (set_option_place(reader, path)) return;
    bool exact = false;
    int node = json_map_find(reader->map, parent, &exact), child = exact ? json_map_child(reader->map, node, name) : -1;
    struct json_place place = json_map_key_place(reader->map, child >= 0 ? child : node);
    error_at(reader->error, reader->file, place.line, place.column, path);
}

static bool fail_unknown(struct reader *reader, const char *section, const char *parent, const char *name,
                         const char *path)
{
    const char *names[KEY_CHILDREN_MAX];
    int count = key_children(section, names);
    char shown[FOREIGN_TEXT], hint[480];
    foreign(name, shown);
    const char *near = spelling_nearest(name, names, count);
    const struct key *elsewhere = key_elsewhere(name);
    if (elsewhere && !near)
        error_input(reader->error, "unknown key '%s' here; did you mean '%s'?", shown, elsewhere->path);
    else if (near) error_input(reader->error, "unknown key '%s'; did you mean '%s'?", shown, near);
    else error_input(reader->error, "unknown key '%s'", shown);
    set_key_place(reader, parent, name, path);
    struct phrase phrase = {hint, sizeof hint, 0};
    phrase_add(&phrase, "allowed here: ");
    phrase_add_names(&phrase, names, count);
    error_hint(reader->error, "%s", hint);
    return false;
}

static bool check_key(struct reader *reader, const cJSON *item, const char *section, const char *path)
{
    char row_path[PATH_TEXT], shown_path[PATH_TEXT], found[96], allowed[256];
    snprintf(row_path, sizeof row_path, "%s%s%.200s", section, *section ? "." : "", item->string);
    join(shown_path, sizeof shown_path, path, item->string);
    const struct key *key = strpbrk(item->string, ".[]") ? NULL : key_find(row_path);
    if (!key) return fail_unknown(reader, section, path, item->string, shown_path);
    if (key->type != KEY_SECTION) return true;
    if (cJSON_IsObject(item)) return reader_check_keys(reader, item, row_path, shown_path);
    reader_describe(item, found, sizeof found);
    key_allowed(key, allowed, sizeof allowed);
    return reader_fail(reader, shown_path, "%s found; %s is allowed", found, allowed);
}

bool reader_check_keys(struct reader *reader, const cJSON *object, const char *section, const char *path)
{
    for (const cJSON *item = object->child; item; item = item->next) {
        if (!check_key(reader, item, section, path)) return false;
    }
    return true;
}
