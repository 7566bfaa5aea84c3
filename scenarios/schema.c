/* schema: the JSON Schema of scenario files (draft 2020-12), line by line from the table of keys. What a schema
 * can't say (what must divide, what contradicts) is left to the loader; what is known but not there yet is in the
 * schema, with what is there in "$comment". */
#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenarios/keys.h"
#include "scenarios/locale_c.h"
#include "scenarios/spelling.h"
#include "sim/assertion.h"

static cJSON *object_schema(void)
{
    cJSON *schema = cJSON_CreateObject();
    cJSON_AddStringToObject(schema, "type", "object");
    cJSON_AddObjectToObject(schema, "properties");
    cJSON_AddFalseToObject(schema, "additionalProperties");
    return schema;
}

/* "type": "integer", or ["integer", "null"] */
static void add_type(cJSON *schema, const char *type, bool nullable)
{
    if (!nullable) {
        cJSON_AddStringToObject(schema, "type", type);
        return;
    }
    cJSON *types = cJSON_AddArrayToObject(schema, "type");
    cJSON_AddItemToArray(types, cJSON_CreateString(type));
    cJSON_AddItemToArray(types, cJSON_CreateString("null"));
}

static void add_number(cJSON *schema, const struct key *key, const char *type, bool nullable)
{
    add_type(schema, type, nullable);
    if (key->low > -1e300) cJSON_AddNumberToObject(schema, "minimum", key->low);
    if (key->high < 1e300) cJSON_AddNumberToObject(schema, "maximum", key->high);
}

static void add_string(cJSON *schema, const struct key *key, bool nullable)
{
    add_type(schema, "string", nullable);
    cJSON_AddNumberToObject(schema, "maxLength", key->high);
}

static void add_choices(cJSON *schema, const char *options)
{
    char name[CHOICE_TEXT];
    cJSON_AddStringToObject(schema, "type", "string");
    cJSON *list = cJSON_AddArrayToObject(schema, "enum");
    for (int i = 0; choice_at(options, i, name); i++) cJSON_AddItemToArray(list, cJSON_CreateString(name));
}

static cJSON *add_list(cJSON *schema, int least, int most)
{
    cJSON_AddStringToObject(schema, "type", "array");
    if (least > 0) cJSON_AddNumberToObject(schema, "minItems", least);
    cJSON_AddNumberToObject(schema, "maxItems", most);
    return cJSON_AddObjectToObject(schema, "items");
}

/* anyOf: the two alternatives */
static void add_either(cJSON *schema, cJSON **ret_first, cJSON **ret_second)
{
    cJSON *list = cJSON_AddArrayToObject(schema, "anyOf");
    *ret_first = cJSON_CreateObject();
    *ret_second = cJSON_CreateObject();
    cJSON_AddItemToArray(list, *ret_first);
    cJSON_AddItemToArray(list, *ret_second);
}

static void add_form(cJSON *schema, const struct key *key)
{
    cJSON *first, *second;
    switch (key->type) {
    case KEY_SECTION:
    case KEY_SECTIONS: break;
    case KEY_INTEGER: add_number(schema, key, "integer", key->nullable); break;
    case KEY_REAL: add_number(schema, key, "number", key->nullable); break;
    case KEY_FLAG: cJSON_AddStringToObject(schema, "type", "boolean"); break;
    case KEY_TEXT: add_string(schema, key, key->nullable); break;
    case KEY_CHOICE: add_choices(schema, key->options); break;
    case KEY_INTEGERS: add_number(add_list(schema, 0, key->count_max), key, "integer", false); break;
    case KEY_REALS: add_number(add_list(schema, key->count_max, key->count_max), key, "number", false); break;
    case KEY_TEXTS: add_string(add_list(schema, 0, key->count_max), key, false); break;
    case KEY_ONE_OR_MORE:
        add_either(schema, &first, &second);
        add_number(first, key, "integer", false);
        add_number(add_list(second, 1, key->count_max), key, "integer", false);
        break;
    case KEY_EXPRESSION:
        add_either(schema, &first, &second);
        cJSON_AddStringToObject(first, "type", "number");
        add_string(second, key, false);
        break;
    }
}

static void add_words(cJSON *schema, const struct key *key)
{
    char text[512], name[CHOICE_TEXT];
    struct phrase phrase = {text, sizeof text, 0};
    phrase_add(&phrase, "%s", key->what);
    if (*key->unit) phrase_add(&phrase, " (%s)", key->unit);
    if (*key->fallback == '=' && key->fallback[1]) phrase_add(&phrase, "; default: %s", key->fallback + 1);
    cJSON_AddStringToObject(schema, "description", text);
    if (*key->fallback != '=') cJSON_AddItemToObject(schema, "default", cJSON_Parse(key->fallback));
    if (!key->there) return;
    phrase.used = 0;
    phrase_add(&phrase, "there so far: ");
    for (int i = 0; choice_at(key->there, i, name); i++) phrase_add(&phrase, "%s%s", i ? ", " : "", name);
    if (!*key->there) phrase_add(&phrase, "%s", *key->fallback == '=' ? "leaving it out" : "the default");
    cJSON_AddStringToObject(schema, "$comment", text);
}

/* Where the members of an object, of a list of objects, or of precision's second form are. */
static cJSON *properties_of(cJSON *schema)
{
    cJSON *items = cJSON_GetObjectItemCaseSensitive(schema, "items"),
          *forms = cJSON_GetObjectItemCaseSensitive(schema, "anyOf");
    if (items) schema = items;
    if (forms) schema = cJSON_GetArrayItem(forms, 1);
    return cJSON_GetObjectItemCaseSensitive(schema, "properties");
}

static cJSON *section_schema(const struct key *key)
{
    if (key->type == KEY_SECTIONS) {
        cJSON *list = cJSON_CreateObject();
        cJSON_AddStringToObject(list, "type", "array");
        cJSON_AddNumberToObject(list, "maxItems", key->count_max);
        cJSON_AddItemToObject(list, "items", object_schema());
        return list;
    }
    if (strcmp(key->path, "precision") != 0) return object_schema();
    cJSON *either = cJSON_CreateObject(), *forms = cJSON_AddArrayToObject(either, "anyOf"), *one = cJSON_CreateObject();
    add_choices(one, key_find("precision.param")->options);
    cJSON_AddItemToArray(forms, one);
    cJSON_AddItemToArray(forms, object_schema());
    return either;
}

static void add_key(cJSON *root, const struct key *key)
{
    bool is_section = key->type == KEY_SECTION || key->type == KEY_SECTIONS;
    cJSON *schema = is_section ? section_schema(key) : cJSON_CreateObject(), *properties = properties_of(root);
    const char *name = key->path;
    char part[64];
    for (size_t length; name[length = strcspn(name, ".[")]; name += length + strspn(name + length, ".[]")) {
        snprintf(part, sizeof part, "%.*s", (int)length, name);
        properties = properties_of(cJSON_GetObjectItemCaseSensitive(properties, part));
        ASSERT_MESSAGE(properties, "%s comes before its section", key->path);
    }
    add_form(schema, key);
    add_words(schema, key);
    cJSON_AddItemToObject(properties, name, schema);
}

char *scenario_schema(void)
{
    struct locale_c locale = locale_c_enter();
    cJSON *root = cJSON_CreateObject(), *form = object_schema();
    cJSON_AddStringToObject(root, "$schema", "https://json-schema.org/draft/2020-12/schema");
    cJSON_AddStringToObject(root, "title", "hpsim scenario");
    while (form->child) {
        cJSON *part = cJSON_DetachItemViaPointer(form, form->child);
        cJSON_AddItemToObject(root, part->string, part);
    }
    cJSON_Delete(form);
    cJSON *required = cJSON_AddArrayToObject(root, "required");
    cJSON_AddItemToArray(required, cJSON_CreateString("parallel"));
    for (int i = 0; i < key_count(); i++) add_key(root, key_at(i));
    char *text = cJSON_Print(root);
    ASSERT(text);
    cJSON_Delete(root);
    locale_c_leave(locale);
    return text;
}
