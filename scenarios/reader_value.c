/* reader_value: one value by its line in the table: type, range, choice, whether it is there yet, and its store. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/plugin/plugin.h"
#include "scenarios/reader.h"
#include "scenarios/spelling.h"
#include "sim/assertion.h"

enum { PATH_TEXT = 256 };
struct value { const struct key *key; const cJSON *item; const char *path; };

/* ---- choices: those of the table, then those that the file's plug-in brings ---- */

static int choice_count(const char *list)
{
    char name[CHOICE_TEXT];
    int count = 0;
    while (choice_at(list, count, name)) count++;
    return count;
}

static int plugin_choice_find(const struct reader *reader, const struct key *key, const char *name)
{
    const char *choice;
    for (int i = 0; (choice = plugin_choice_at(reader->plugin, key->path, i)); i++) {
        if (!strcmp(choice, name)) return i;
    }
    return -1;
}

static int choice_find_here(const struct reader *reader, const struct key *key, const char *name)
{
    int found = choice_find(key->options, name), own = found < 0 ? plugin_choice_find(reader, key, name) : -1;
    return own < 0 ? found : choice_count(key->options) + own;
}

static void add_plugin_choices(const struct reader *reader, const struct key *key, char *text, size_t size)
{
    struct phrase phrase = {text, size, strlen(text)};
    const char *choice;
    for (int i = 0; (choice = plugin_choice_at(reader->plugin, key->path, i)); i++) phrase_add(&phrase, "%s'%s'", i ? ", " : "; of the plug-in: ", choice);
}

static bool fail_value(struct reader *reader, const struct value *v, const cJSON *item, const char *path)
{
    char found[96], allowed[512];
    reader_describe(item, found, sizeof found);
    key_allowed(v->key, allowed, sizeof allowed);
    add_plugin_choices(reader, v->key, allowed, sizeof allowed);
    reader_fail(reader, path, "%s found; allowed: %s", found, allowed);
    char shown[FOREIGN_TEXT];
    if (v->key->type == KEY_TEXTS && cJSON_IsString(item)) error_hint(reader->error, "a list of one: [\"%s\"]", foreign(item->valuestring, shown));
    if (v->key->type != KEY_CHOICE || !cJSON_IsString(item)) return false;
    char names[32][CHOICE_TEXT];
    const char *list[64];
    int count = 0, own = 0;
    for (; count < 32 && choice_at(v->key->options, count, names[count]); count++) list[count] = names[count];
    while (count < 64 && (list[count] = plugin_choice_at(reader->plugin, v->key->path, own++))) count++;
    const char *near = spelling_nearest(item->valuestring, list, count);
    if (near) error_hint(reader->error, "did you mean '%s'?", near);
    return false;
}

/* ---- is it of this type and in range? ---- */

static bool in_range(const struct key *key, const cJSON *item)
{
    return cJSON_IsNumber(item) && item->valuedouble >= key->low && item->valuedouble <= key->high;
}

static bool is_integer(const struct key *key, const cJSON *item)
{
    return in_range(key, item) && floor(item->valuedouble) == item->valuedouble;
}

static bool is_text(const struct key *key, const cJSON *item)
{
    return cJSON_IsString(item) && (double)strlen(item->valuestring) <= key->high;
}

static bool element_fits(const struct key *key, const cJSON *item)
{
    if (key->type == KEY_TEXTS) return is_text(key, item);
    return key->type == KEY_REALS ? in_range(key, item) : is_integer(key, item);
}

static bool check_list(struct reader *reader, const struct value *v)
{
    int count = cJSON_GetArraySize(v->item), least = v->key->type == KEY_ONE_OR_MORE, index = 0;
    if (v->key->type == KEY_REALS) least = v->key->count_max;
    if (count < least || count > v->key->count_max) {
        char allowed[512];
        key_allowed(v->key, allowed, sizeof allowed);
        return reader_fail(reader, v->path, "a list of %d found; allowed: %s", count, allowed);
    }
    for (const cJSON *item = v->item->child; item; item = item->next, index++) {
        char path[PATH_TEXT + 16];
        snprintf(path, sizeof path, "%s[%d]", v->path, index);
        if (!element_fits(v->key, item)) return fail_value(reader, v, item, path);
    }
    return true;
}

static bool check_type(struct reader *reader, const struct value *v)
{
    const struct key *key = v->key;
    const cJSON *item = v->item;
    bool good = false;
    if (key->nullable && cJSON_IsNull(item)) return true;
    switch (key->type) {
    case KEY_SECTION: return true; /* reader_check_keys has seen them */
    case KEY_SECTIONS: good = cJSON_IsArray(item) && cJSON_GetArraySize(item) <= key->count_max; break;
    case KEY_INTEGER: good = is_integer(key, item); break;
    case KEY_REAL: good = in_range(key, item); break;
    case KEY_FLAG: good = cJSON_IsBool(item); break;
    case KEY_TEXT: good = is_text(key, item); break;
    case KEY_CHOICE: good = cJSON_IsString(item) && choice_find_here(reader, key, item->valuestring) >= 0; break;
    case KEY_EXPRESSION: good = cJSON_IsNumber(item) || is_text(key, item); break;
    case KEY_ONE_OR_MORE:
        if (!cJSON_IsArray(item)) {
            good = is_integer(key, item);
            break;
        } /* fall through */
    case KEY_INTEGERS:
    case KEY_REALS:
    case KEY_TEXTS:
        if (cJSON_IsArray(item)) return check_list(reader, v);
        break;
    }
    return good || fail_value(reader, v, item, v->path);
}

/* ---- is it there yet? ---- */

static cJSON *parse_default(const struct key *key)
{
    if (*key->fallback == '=') return NULL;
    cJSON *item = cJSON_Parse(key->fallback);
    ASSERT_MESSAGE(item, "default of %s", key->path);
    return item;
}

static bool is_there(const struct reader *reader, const struct key *key, const cJSON *item, const cJSON *fallback)
{
    if (!key->there || (fallback && cJSON_Compare(item, fallback, true))) return true;
    char text[CHOICE_TEXT];
    if (cJSON_IsString(item)) return choice_find(key->there, item->valuestring) >= 0 || plugin_choice_find(reader, key, item->valuestring) >= 0;
    if (!cJSON_IsNumber(item)) return false;
    snprintf(text, sizeof text, "%.15g", item->valuedouble);
    return choice_find(key->there, text) >= 0;
}

static bool fail_not_there(struct reader *reader, const struct value *v)
{
    char found[96], now[320], name[CHOICE_TEXT];
    struct phrase phrase = {now, sizeof now, 0};
    now[0] = 0;
    reader_describe(v->item, found, sizeof found);
    for (int i = 0; choice_at(v->key->there, i, name); i++) phrase_add(&phrase, "%s%s", i ? ", " : "", name);
    add_plugin_choices(reader, v->key, now, sizeof now);
    phrase.used = strlen(now);
    if (!*v->key->there) phrase_add(&phrase, "%s", *v->key->fallback == '=' ? "leaving it out" : v->key->fallback);
    const char *last = strrchr(v->key->path, '.');
    return reader_fail(reader, v->path, "%s %s is not there yet; there is: %s", last ? last + 1 : v->key->path, found,
                       now);
}

/* ---- store ---- */

static void store_list(const struct key *key, const cJSON *item, char *to, int *to_count)
{
    int count = 0;
    if (!cJSON_IsArray(item)) {
        ((int *)(void *)to)[count++] = (int)item->valuedouble;
    } else {
        for (const cJSON *one = item->child; one; one = one->next, count++) {
            if (key->type == KEY_REALS) ((double *)(void *)to)[count] = one->valuedouble;
            else ((int *)(void *)to)[count] = (int)one->valuedouble;
        }
    }
    if (to_count) *to_count = count;
}

static void store(const struct reader *reader, const struct key *key, const cJSON *item, char *base)
{
    char *to = base + key->target.offset;
    double number = cJSON_IsNumber(item) ? item->valuedouble : 0; /* null stands for 0 */
    switch (key->target.store) {
    case STORE_NOTHING: break;
    case STORE_INT: *(int *)(void *)to = (int)number; break;
    case STORE_U64: *(uint64_t *)(void *)to = (uint64_t)number; break;
    case STORE_DOUBLE: *(double *)(void *)to = number; break;
    case STORE_BOOL: *(bool *)(void *)to = cJSON_IsTrue(item); break;
    case STORE_TEXT: snprintf(to, key->target.bytes, "%s", cJSON_IsString(item) ? item->valuestring : ""); break;
    case STORE_INDEX: *(int *)(void *)to = choice_find_here(reader, key, item->valuestring); break;
    case STORE_LIST:
        store_list(key, item, to, key->target.count_offset ? (int *)(void *)(base + key->target.count_offset) : NULL);
        break;
    }
}

/* ---- all keys of a section ---- */

/* The part of a line's path below the section, NULL where it is not one of its keys. */
static const char *below(const struct key *key, const char *section)
{
    size_t length = strlen(section);
    const char *rest = key->path;
    if (length) {
        if (strncmp(rest, section, length) != 0 || rest[length] != '.') return NULL;
        rest += length + 1;
    }
    return strchr(rest, '[') ? NULL : rest;
}

static bool read_key(struct reader *reader, const struct value *v, void *base)
{
    cJSON *fallback = parse_default(v->key);
    bool good = true;
    if (v->item) {
        good = check_type(reader, v) && (is_there(reader, v->key, v->item, fallback) || fail_not_there(reader, v));
        if (good) store(reader, v->key, v->item, base);
    } else if (fallback) {
        store(reader, v->key, fallback, base);
    }
    cJSON_Delete(fallback);
    return good;
}

bool reader_read(struct reader *reader, const cJSON *object, const char *section, const char *path, void *base)
{
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        const char *rest = below(key, section);
        if (!rest) continue;
        char shown[PATH_TEXT];
        snprintf(shown, sizeof shown, "%s%s%s", path, *path ? "." : "", rest);
        struct value v = {key, reader_descend(object, rest), shown};
        if (!read_key(reader, &v, base)) return false;
    }
    return true;
}
