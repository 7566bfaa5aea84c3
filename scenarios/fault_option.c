/* fault_option: --fault NAME[@key=value,...], turned into the object that a file would have.
 *
 *   loss-divided-twice@step=0,rank=6+7   {"fault": "loss-divided-twice", "at": {"step": 0, "rank": [6, 7]}}
 *   pp.loss.scale:times@factor=1/M,once  {"fault": "pp.loss.scale:times", "factor": "1/M", "once": true} */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios/fault_entry.h"
#include "scenarios/json_strict.h"
#include "scenarios/overrides.h"
#include "scenarios/spelling.h"
#include "sim/arena.h"

static bool fail_key(struct reader *reader, const char *name)
{
    const char *names[2 * KEY_CHILDREN_MAX], *beside[KEY_CHILDREN_MAX];
    int count = key_children("faults[].at", names), more = key_children("faults[]", beside);
    for (int i = 0; i < more; i++) {
        bool is_name = !strcmp(beside[i], "fault") || !strcmp(beside[i], "site") || !strcmp(beside[i], "do") ||
                       !strcmp(beside[i], "at");
        if (!is_name) names[count++] = beside[i];
    }
    char shown[FOREIGN_TEXT], hint[400];
    struct phrase phrase = {hint, sizeof hint, 0};
    const char *near = spelling_nearest(name, names, count);
    foreign(name, shown);
    if (near) reader_fail(reader, "", "unknown key '%s'; did you mean '%s'?", shown, near);
    else reader_fail(reader, "", "unknown key '%s'", shown);
    phrase_add(&phrase, "allowed: ");
    phrase_add_names(&phrase, names, count);
    error_hint(reader->error, "%s", hint);
    return false;
}

/* "6+7" into [6, 7]; what is no number stays a string, for validation to find. */
static cJSON *parse_places(char *text)
{
    if (!strchr(text, '+')) return overrides_value(text);
    cJSON *list = cJSON_CreateArray();
    for (char *part = text; part;) {
        char *plus = strchr(part, '+');
        if (plus) *plus = 0;
        cJSON_AddItemToArray(list, overrides_value(part));
        part = plus ? plus + 1 : NULL;
    }
    return list;
}

static bool add_pair(struct reader *reader, cJSON *object, cJSON *at, char *pair)
{
    char *equals = strchr(pair, '='), row[128], shown[FOREIGN_TEXT];
    if (equals) *equals = 0;
    bool once = !equals && !strcmp(pair, "once");
    if (!equals && !once) return reader_fail(reader, "", "'%s' is not of the form key=value", foreign(pair, shown));
    snprintf(row, sizeof row, "faults[].at.%.100s", pair);
    const struct key *key = strpbrk(pair, ".[]") ? NULL : key_find(row);
    cJSON *into = key ? at : object;
    if (!key) {
        snprintf(row, sizeof row, "faults[].%.100s", pair);
        key = strpbrk(pair, ".[]") ? NULL : key_find(row);
        bool is_name = !strcmp(pair, "fault") || !strcmp(pair, "site") || !strcmp(pair, "do") || !strcmp(pair, "at");
        if (!key || is_name) return fail_key(reader, pair);
    }
    if (cJSON_HasObjectItem(into, pair)) return reader_fail(reader, pair, "'%s' is given twice", pair);
    bool is_text = key->type == KEY_TEXT || key->type == KEY_CHOICE;
    cJSON *value = once ? cJSON_CreateTrue() : is_text ? cJSON_CreateString(equals + 1)
                 : key->type == KEY_ONE_OR_MORE ? parse_places(equals + 1) : overrides_value(equals + 1);
    cJSON_AddItemToObject(into, pair, value);
    return true;
}

static cJSON *parse(struct reader *reader, char *text)
{
    cJSON *object = cJSON_CreateObject(), *at = cJSON_AddObjectToObject(object, "at");
    char *pairs = strchr(text, '@');
    if (pairs) *pairs++ = 0;
    bool good = *text || reader_fail(reader, "", "a name is missing; allowed: NAME[@key=value,...]");
    cJSON_AddStringToObject(object, "fault", text);
    while (good && pairs) {
        char *comma = strchr(pairs, ',');
        if (comma) *comma = 0;
        good = add_pair(reader, object, at, pairs);
        pairs = comma ? comma + 1 : NULL;
    }
    if (good) return object;
    cJSON_Delete(object);
    return NULL;
}

/* ---- and back ---- */

static void write_list(struct phrase *phrase, const char *name, const struct at_list *list)
{
    for (int i = 0; i < list->count; i++) {
        if (i == 0) phrase_add(phrase, "%c%s=", strchr(phrase->text, '@') ? ',' : '@', name);
        phrase_add(phrase, "%s%d", i ? "+" : "", list->values[i]);
    }
}

static void write_text(struct phrase *phrase, const char *name, const char *text)
{
    phrase_add(phrase, "%c%s%s%s", strchr(phrase->text, '@') ? ',' : '@', name, *text ? "=" : "", text);
}

const char *fault_entry_write(const struct fault_entry *entry, char text[FAULT_ENTRY_TEXT])
{
    struct phrase phrase = {text, FAULT_ENTRY_TEXT, 0};
    char number[40];
    text[0] = 0;
    phrase_add(&phrase, "%s", entry->name);
    write_list(&phrase, "rank", &entry->rank);
    write_list(&phrase, "stage", &entry->stage);
    write_list(&phrase, "step", &entry->step);
    write_list(&phrase, "microbatch", &entry->microbatch);
    write_list(&phrase, "layer", &entry->layer);
    write_list(&phrase, "hop", &entry->hop);
    if (entry->param[0]) write_text(&phrase, "param", entry->param);
    if (entry->argument && !entry->text[0]) snprintf(number, sizeof number, "%.15g", entry->value);
    if (entry->argument) write_text(&phrase, entry->argument, entry->text[0] ? entry->text : number);
    if (entry->once) write_text(&phrase, "once", "");
    if (entry->in != FAULT_IN_PARALLEL) write_text(&phrase, "in", entry->in == FAULT_IN_BOTH ? "both" : "standalone");
    return text;
}

bool fault_entry_parse(struct reader *reader, const char *text, struct fault_entry *ret_entry)
{
    char place[96], shown[FOREIGN_TEXT], *copy = memory_strdup(text);
    snprintf(place, sizeof place, "--fault %s", foreign(text, shown));
    reader->place = place;
    bool good =
        json_text_valid(text, strlen(text)) || reader_fail(reader, "", "not UTF-8 text without control characters");
    cJSON *object = good ? parse(reader, copy) : NULL;
    good = object && fault_entry_read(reader, object, "", ret_entry);
    cJSON_Delete(object);
    free(copy);
    reader->place = NULL;
    return good;
}
