/* key_use: see the header. */
#include "scenarios/key_use.h"

#include <stdio.h>
#include <string.h>

enum { TRAIN = 1, DENOISE = 2, ATTENTION = 4 };
#define ANY NULL
static const struct use { const char *path; unsigned workloads; const char *methods, *why; } uses[] = {
#define USE(path, workloads, methods, why) {path, workloads, methods, why},
#include "scenarios/key_use.def"
#undef USE
};

static unsigned bit_of(enum workload workload)
{
    return workload == WORKLOAD_TRAIN ? TRAIN : workload == WORKLOAD_DENOISE ? DENOISE : ATTENTION;
}

static const char *name_of(enum workload workload)
{
    return workload == WORKLOAD_TRAIN ? "train" : workload == WORKLOAD_DENOISE ? "denoise" : "attention";
}

/* The longest path that is the key's, or a section's around it. */
static const struct use *use_of(const char *path)
{
    const struct use *found = NULL;
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        size_t length = strlen(uses[i].path);
        if (strncmp(path, uses[i].path, length) != 0 || (path[length] && path[length] != '.' && path[length] != '[')) continue;
        if (!found || length > strlen(found->path)) found = &uses[i];
    }
    return found;
}

/* The names between the bars as words: "ring and usp". */
static void add_names(const char *list, char *text, size_t size)
{
    char name[CHOICE_TEXT], more[CHOICE_TEXT];
    for (int i = 0; choice_at(list, i, name); i++) {
        size_t used = strlen(text);
        snprintf(text + used, size - used, "%s%s", i == 0 ? "" : choice_at(list, i + 1, more) ? ", " : " and ", name);
    }
}

const char *key_used_by(const struct key *key, char *text, size_t size)
{
    const struct use *use = use_of(key->path);
    static const char *const lists[] = {"", "train", "denoise", "train|denoise", "attention", "train|attention", "denoise|attention"};
    text[0] = '\0';
    if (!use) return text;
    if (use->workloads < TRAIN + DENOISE + ATTENTION) {
        snprintf(text, size, "workload%s ", use->workloads & (use->workloads - 1) ? "s" : "");
        add_names(lists[use->workloads], text, size);
    }
    if (!use->methods) return text;
    size_t used = strlen(text);
    snprintf(text + used, size - used, "%smethod%s ", used ? "; " : "", strchr(use->methods, '|') ? "s" : "");
    add_names(use->methods, text, size);
    return text;
}

/* Of a default that is computed: what holds where nothing else is asked for, and what says "none of it", or "one" of what is
 * at least one. */
static bool is_default(const struct key *key, const cJSON *item)
{
    if (!key->fallback || key->fallback[0] == '=') {
        const char *last = key->fallback ? strstr(key->fallback, "else ") : NULL;
        bool as_else = last && ((cJSON_IsString(item) && !strcmp(item->valuestring, last + 5)) || (cJSON_IsTrue(item) && !strcmp(last + 5, "true")));
        return as_else || cJSON_IsFalse(item) || cJSON_IsNull(item) || (cJSON_IsNumber(item) && (item->valuedouble == 0 || (item->valuedouble == 1 && key->low == 1)));
    }
    cJSON *due = cJSON_Parse(key->fallback);
    bool equal = due && cJSON_Compare(due, item, true);
    cJSON_Delete(due);
    return equal;
}

static bool is_method_of(const char *methods, const char *method)
{
    return !methods || !method || choice_find("ring|all_gather|ulysses|usp", method) < 0 || choice_find(methods, method) >= 0;
}

bool key_is_read(const struct key *key, enum workload workload, const char *method)
{
    const struct use *use = use_of(key->path);
    return !use || ((use->workloads & bit_of(workload)) && is_method_of(use->methods, method));
}

const char *key_needs(const struct key *key, char *text, size_t size)
{
    const struct use *use = use_of(key->path);
    char method[CHOICE_TEXT];
    text[0] = '\0';
    if (use && !(use->workloads & TRAIN)) snprintf(text, size, "--set workload=%s ", use->workloads & ATTENTION ? "attention" : "denoise");
    if (!use || !use->methods || is_method_of(use->methods, "ring")) return text;
    size_t used = strlen(text);
    choice_at(use->methods, 0, method);
    snprintf(text + used, size - used, "--set parallel.context.method=%s ", method);
    return text;
}

bool key_use_check(struct reader *reader, enum workload workload, const char *method)
{
    for (int i = 0; i < key_count(); i++) {
        const struct key *key = key_at(i);
        const struct use *use = use_of(key->path);
        const cJSON *item = use && !strchr(key->path, '[') ? reader_item(reader, key->path) : NULL;
        char by[160] = "";
        if (!item || cJSON_IsObject(item) || is_default(key, item)) continue;
        bool reads = key_is_read(key, workload, NULL);
        if (key_is_read(key, workload, method)) continue;
        key_used_by(key, by, sizeof by);
        if (!reads) return reader_fail(reader, key->path, "workload %s does not read %s: %s; leave it out (read by %s)", name_of(workload), key->path, use->why, by);
        return reader_fail(reader, key->path, "context method %s does not read %s: %s; leave it out (read by %s)", method, key->path, use->why, by);
    }
    return true;
}
